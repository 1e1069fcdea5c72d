"""Wait until all nodes of a job have joined Ray. Print the names of the nodes that have not.

ray_nodes.py ADDRESSES SECONDS      lib/addresses.sh writes the file ADDRESSES
"""

import sys
import time

import ray

with open(sys.argv[1], encoding="utf-8") as lines:
    names = {line.split()[1] for line in lines}
ray.init(log_to_driver=False, logging_level="ERROR")  # connects to RAY_ADDRESS
end = time.monotonic() + float(sys.argv[2])
while True:
    missing = names - {node["NodeName"] for node in ray.nodes() if node["Alive"]}
    if not missing or time.monotonic() > end:
        break
    time.sleep(0.2)
print("\n".join(sorted(missing)))
