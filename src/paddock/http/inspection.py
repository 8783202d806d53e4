"""The certificate authority of the session: it terminates the TLS of inspected hosts only.

Its key stays in the memory of this process. The sandbox gets the certificate, together with those
of the system (plan/http_routes.py has the variables by which programs find it).
"""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=30)
_CLOCKS_DIFFER = datetime.timedelta(days=1)
# The usual paths of systems, if OpenSSL knows no file.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class Authority:
    """``hosts``: the certificate is constrained to these hosts."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: dict[str, ssl.SSLContext] = {}
        name = _named("Paddock session (this sandbox only)")
        permitted = [x509.DNSName(host) for host in hosts]
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            _valid(x509.CertificateBuilder())
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .add_extension(
                x509.NameConstraints(permitted_subtrees=permitted, excluded_subtrees=None),
                critical=True,
            )
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """In PEM format."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def bundle(self) -> bytes:
        """The certificates for programs inside: those of the system, and this one."""
        return _system_bundle() + self.certificate

    def context(self, host: str) -> ssl.SSLContext:
        """A server context for that host. A client that names another host or none (SNI) is
        refused.
        """
        known = self._contexts.get(host)
        if known is not None:
            return known
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2", "http/1.1"])
        _load(context, self._leaf(host) + self.certificate, self._leaf_key)

        def named(_connection: object, name: str | None, _context: ssl.SSLContext) -> int | None:
            same = name is not None and name.lower().removesuffix(".") == host
            return None if same else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

        context.sni_callback = named
        self._contexts[host] = context
        return context

    def _leaf(self, host: str) -> bytes:
        certificate = (
            _valid(x509.CertificateBuilder())
            .subject_name(_named(host) if len(host) <= 64 else x509.Name([]))
            .issuer_name(self._certificate.subject)
            .public_key(self._leaf_key.public_key())
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(host)]), critical=len(host) > 64
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def _named(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _valid(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
    )


def _load(context: ssl.SSLContext, chain: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """ssl reads keys only from files; this file is on no disk."""
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.memfd_create("certificate", os.MFD_CLOEXEC), "wb") as file:
        file.write(pem + chain)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _system_bundle() -> bytes:
    known = ssl.get_default_verify_paths().cafile
    for path in ([known] if known else []) + list(_BUNDLES):
        try:
            with open(path, "rb") as file:
                pem = file.read()
        except OSError:
            continue
        return pem if pem.endswith(b"\n") else pem + b"\n"
    return b""
