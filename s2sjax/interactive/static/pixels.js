// Values as the pixels of a picture.

function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// A picture with a pixel for each value from -1 to 1: blue if positive, orange if negative, on any ground.
function pixels(width, height, value) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let place = 0; place < width * height; place += 1) {
    const found = value(place);
    image.data.set([...(found < 0 ? [216, 110, 60] : [63, 132, 198]), Math.round(255 * Math.abs(found))], 4 * place);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
