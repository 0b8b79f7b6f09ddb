"""Certificates for tests: a CA, good ones for server and client, and bad ones of each kind."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.bench.secret_watch import WATCH

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class KeyPair:
    """PEM files of a certificate and its private key (mode 0600)."""

    cert: Path
    key: Path


def _write_key(path: Path, pem: bytes) -> None:
    WATCH.keep(pem, f"the key {path.name}")
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """A certificate authority whose files lie in one folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        """Make the authority; ``<name>.pem`` is its certificate."""
        self.folder = folder
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(f"edl test {name}")
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._subject)
            .issuer_name(self._subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = folder / f"{name}.pem"
        self.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        names: tuple[str, ...] = LOCAL_NAMES,
        common_name: str | None = None,
        starts: datetime.timedelta = datetime.timedelta(hours=-1),
        ends: datetime.timedelta = datetime.timedelta(days=7),
    ) -> KeyPair:
        """Make ``<name>.pem`` and ``<name>-key.pem`` for server and client use; ``starts`` and ``ends`` count from
        now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name or name))
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + starts)
            .not_valid_after(now + ends)
            .add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                # etcd's own HTTP gateway dials the server with the server certificate, so that needs both uses.
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        pair = KeyPair(self.folder / f"{name}.pem", self.folder / f"{name}-key.pem")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, _private_pem(key))
        return pair


class CertificateFolder:
    """A folder with one good authority and certificates of every kind; each is made when first asked for."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``; make the authority in it."""
        self.folder = folder
        self.authority = Authority(folder)

    @property
    def ca(self) -> Path:
        """Certificate of the good authority."""
        return self.authority.cert

    @cached_property
    def other_ca(self) -> Path:
        """Certificate of an authority that signed nothing of the rest."""
        return self._other.cert

    @cached_property
    def _other(self) -> Authority:
        return Authority(self.folder, "other-ca")

    @cached_property
    def server(self) -> KeyPair:
        """Good for localhost, 127.0.0.1 and ::1."""
        return self.authority.issue("server")

    @cached_property
    def client(self) -> KeyPair:
        """Good client certificate; the common name is ``client``."""
        return self.authority.issue("client", names=("client.invalid",))

    @cached_property
    def expired(self) -> KeyPair:
        """Server certificate that ended an hour ago."""
        return self.authority.issue("expired", starts=datetime.timedelta(days=-2), ends=datetime.timedelta(hours=-1))

    @cached_property
    def wrong_name(self) -> KeyPair:
        """Server certificate for another host."""
        return self.authority.issue("wrong-name", names=("elsewhere.invalid",))

    @cached_property
    def unknown_ca(self) -> KeyPair:
        """Server certificate for the right names, signed by the other authority."""
        return self._other.issue("unknown-ca")

    def rotate(self, pair: KeyPair, replacement: KeyPair | None = None) -> None:
        """Put another certificate (default: a fresh one of the good authority) into the files of ``pair``, by
        rename.
        """
        fresh = replacement or self.authority.issue(f"{pair.cert.stem}-next", common_name=pair.cert.stem)
        for source, target in ((fresh.key, pair.key), (fresh.cert, pair.cert)):
            copy = target.with_suffix(".new")
            shutil.copy2(source, copy)
            copy.replace(target)


def jwt_keys(folder: Path) -> KeyPair:
    """RSA keys for etcd's JWT tokens: ``cert`` is the public key, ``key`` the private one."""
    folder.mkdir(parents=True, exist_ok=True)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = KeyPair(folder / "jwt-public.pem", folder / "jwt-private.pem")
    pair.cert.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    _write_key(pair.key, _private_pem(key))
    return pair
