// Pictures as a film. view: { pictures, captions }, pictures: PNG in base64, without the last one, which the page has already.
function picturesFilm(view, host) {
  const sources = [...view.pictures.map((text) => `data:image/png;base64,${text}`), host.querySelector("img").src];
  const picture = element("img", {});
  const show = (frame) => {
    picture.src = sources[frame];
    picture.alt = view.captions[frame] || `picture ${frame + 1}`;
    return [data(view.captions[frame])];
  };
  return film(sources.length, show, picture).box;
}
