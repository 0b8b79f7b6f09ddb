"""A parameter server of the job. All that it has to know is in the environment that `edl-agent run` has written."""

import json
import os
import time

import network
import paddle
from paddle.distributed import fleet

print(json.dumps({"event": "begin", "time": time.monotonic(), "pid": os.getpid()}), flush=True)
paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
loss, _ = network.build()
network.distribute(loss)
fleet.init_server()  # with nothing: trainer 0 has the checkpoint loaded, by all pservers alike
fleet.run_server()
