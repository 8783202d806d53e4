"""A certificate authority of the tests. It signs the certificates of upstreams. A test decides
whether the server trusts it.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class TestAuthority:
    __test__ = False

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the tests' authority")])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._builder(self._name, self._key).add_extension(
            constraints, critical=True
        )
        self.pem = self._certificate.sign(self._key, hashes.SHA256()).public_bytes(
            serialization.Encoding.PEM
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def server(self, name: str) -> ssl.SSLContext:
        """A server context for an upstream of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([]), key)
        certificate = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True
        ).sign(self._key, hashes.SHA256())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "chain.pem")
            file.write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
                + certificate.public_bytes(serialization.Encoding.PEM)
            )
            context.load_cert_chain(file)
        return context

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.pem.decode())
