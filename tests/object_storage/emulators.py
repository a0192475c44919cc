"""Serves Google Cloud Storage and S3 from memory: python emulators.py GCS_PORT S3_PORT OUTAGE.

As long as the file OUTAGE exists, both answer every request with the status that it contains.
"""

import logging
import sys
from http import HTTPStatus
from pathlib import Path

from gcp_storage_emulator import server as gcs
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

outage: Path


def status() -> int:
    return int(outage.read_text() or 503) if outage.exists() else 0


def generation(request, storage, name) -> str:
    try:
        return storage.get_file_obj(request.params["bucket_name"], name)["generation"]
    except NotFound:
        return "0"


def with_conditions(handler, name_of):
    """The emulator ignores ifGenerationMatch, which the lock of a run is built on."""

    def handle(request, response, storage, *args, **kwargs):
        wanted = request.query.get("ifGenerationMatch")
        if wanted and generation(request, storage, name_of(request)) != wanted[0]:
            response.status = HTTPStatus.PRECONDITION_FAILED
            return None
        return handler(request, response, storage, *args, **kwargs)

    return handle


def with_generation(handler):
    """It does not name the generation of an object that it sends."""

    def handle(request, response, storage, *args, **kwargs):
        result = handler(request, response, storage, *args, **kwargs)
        response["x-goog-generation"] = generation(request, storage, request.params["object_id"])
        return result

    return handle


def patched_routes():
    named = {
        objects.insert: with_conditions(objects.insert, lambda request: request.query["name"][0]),
        objects.delete: with_conditions(objects.delete, lambda request: request.params["object_id"]),
        objects.download: with_generation(objects.download),
        objects.get: with_generation(objects.get),
    }
    return tuple(
        (path, {method: named.get(handler, handler) for method, handler in methods.items()})
        for path, methods in gcs.HANDLERS
    )


class Router(gcs.Router):
    def handle(self, method):
        if status():
            self._request_handler.send_response(status())
            self._request_handler.send_header("Content-Length", "0")
            return self._request_handler.end_headers()
        return super().handle(method)


def serve_s3(port: int) -> None:
    backends = DomainDispatcherApplication(create_backend_app)

    def app(environ, start_response):
        if status():
            start_response(f"{status()} Slow Down", [("Content-Length", "0")])
            return [b""]
        return backends(environ, start_response)

    run_simple("127.0.0.1", port, app, threaded=True)


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    outage = Path(sys.argv[3])
    gcs.HANDLERS, gcs.Router = patched_routes(), Router
    gcs.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="runs").start()
    serve_s3(int(sys.argv[2]))
