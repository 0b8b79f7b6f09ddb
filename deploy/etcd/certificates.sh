#!/bin/sh
# Makes a CA, the certificate of etcd's members and one of the controller, and prints them as Secrets:
#   deploy/etcd/certificates.sh | kubectl apply -f -
# The files go to the folder $OUT (default: ./etcd-certificates), mode 0600. Keep ca.key: it signs what comes later.
# Needs openssl. NAMESPACE (default edl-system) is where etcd and the controller run. Existing files are kept and used.
set -eu
umask 077
out=${OUT:-etcd-certificates}
namespace=${NAMESPACE:-edl-system}
days=${DAYS:-365}
mkdir -p "$out"

if [ ! -e "$out/ca.key" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=edl-etcd CA" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$out/ca.key" -out "$out/ca.crt" 2>"$out/openssl.log"
fi

sign() { # NAME CN EXTENDED-KEY-USAGE [ALTERNATIVE-NAMES]
  if [ -e "$out/$1.crt" ]; then return; fi
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" \
    -keyout "$out/$1.key" -out "$out/$1.csr" 2>>"$out/openssl.log"
  { echo "basicConstraints=CA:FALSE"; echo "extendedKeyUsage=$3"; if [ -n "${4:-}" ]; then echo "subjectAltName=$4"; fi; } \
    >"$out/$1.ext"
  openssl x509 -req -in "$out/$1.csr" -CA "$out/ca.crt" -CAkey "$out/ca.key" -CAcreateserial -days "$days" \
    -extfile "$out/$1.ext" -out "$out/$1.crt" 2>>"$out/openssl.log"
}

# A member looks its peers' addresses up: by name, since not every cluster's DNS leads from an address back to a name.
members="DNS:*.edl-etcd-members.$namespace.svc,DNS:*.edl-etcd-members.$namespace.svc.cluster.local"
for number in 0 1 2; do members="$members,DNS:edl-etcd-$number.edl-etcd-members.$namespace.svc"; done
service="DNS:edl-etcd,DNS:edl-etcd.$namespace,DNS:edl-etcd.$namespace.svc,DNS:edl-etcd.$namespace.svc.cluster.local"
sign server edl-etcd serverAuth,clientAuth "$members,$service,DNS:localhost,IP:127.0.0.1"
sign client edl-controller clientAuth

coded() { base64 <"$1" | tr -d '\n'; }
secret() { # NAME FILE
  cat <<END
apiVersion: v1
kind: Secret
metadata:
  name: $1
  namespace: $namespace
type: kubernetes.io/tls
data:
  ca.crt: $(coded "$out/ca.crt")
  tls.crt: $(coded "$out/$2.crt")
  tls.key: $(coded "$out/$2.key")
---
END
}
secret edl-etcd-server server
secret edl-etcd-client client
