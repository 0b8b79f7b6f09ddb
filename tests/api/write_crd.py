"""Write the definition anew from the types, for the package and for kubectl; tests compare both with the types.

python -m tests.api.write_crd
"""

from pathlib import Path

from edl_controller.api import crd

CRD_FILE = Path(crd.__file__).with_name("crd.yaml")
DEPLOYED = Path(__file__).resolve().parents[2] / "deploy" / "cluster" / "crd.yaml"
"""A copy: kustomize takes nothing from outside its folder."""


if __name__ == "__main__":
    for file in (CRD_FILE, DEPLOYED):
        file.write_text(crd.render())
        print(file)
