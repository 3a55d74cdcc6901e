"""An endpoint on loopback that issues signed tokens for a client id and a client secret (OAuth 2.0, grant ``client_credentials``)."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET, SCOPE = "etl-client", "s3cret-of-the-client", "kafka"


class TokenIssuer:
    """
    Issues tokens that are valid for a minute. A server that checks them reads the public key from the file ``keys``.

    :attr requests: the form of each accepted request for a token
    :attr refused: the number of requests with wrong credentials
    """

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.keys = home / "keys.json"
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        self.keys.write_text(json.dumps({"keys": [{**public, "kid": "1", "alg": "RS256", "use": "sig"}]}))
        self.requests: list[dict[str, list[str]]] = []
        self.refused = 0

    def token(self) -> dict[str, Any]:
        now = int(time.time())
        claims = {"sub": CLIENT, "iat": now, "exp": now + 60, "scope": SCOPE, "iss": "streamsem-tests"}
        token = jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": "1"})
        return {"access_token": token, "token_type": "Bearer", "expires_in": 60, "scope": SCOPE}

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve tokens within the block, and yield the URL of the endpoint."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                is_known = self.headers.get("Authorization", "").partition(" ")[2] == expected
                if is_known:
                    issuer.requests.append(form)
                else:
                    issuer.refused += 1
                body = json.dumps(issuer.token() if is_known else {"error": "invalid_client"}).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            server.server_close()
