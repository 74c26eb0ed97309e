"""A real S3 server on loopback, for the time of a block."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


@contextlib.contextmanager
def s3_bucket() -> Iterator[tuple[str, Any]]:
    """A bucket `cells` as the URI of `execution.storage`, and a client of its server."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
            client.create_bucket(Bucket="cells")
            yield f"s3://cells/some/where?endpoint_override={host}%3A{port}&scheme=http&region=us-east-1", client
    finally:
        server.stop()


def objects(client: Any) -> set[str]:
    """The names of all files there; arrow leaves markers where directories were."""
    listed = client.list_objects_v2(Bucket="cells").get("Contents", [])
    return {entry["Key"] for entry in listed if not entry["Key"].endswith("/")}
