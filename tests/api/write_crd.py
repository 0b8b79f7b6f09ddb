"""Write edl_controller/api/crd.yaml anew; a test compares it with the types.

python -m tests.api.write_crd
"""

from pathlib import Path

from edl_controller.api import crd

CRD_FILE = Path(crd.__file__).with_name("crd.yaml")


if __name__ == "__main__":
    CRD_FILE.write_text(crd.render())
    print(CRD_FILE)
