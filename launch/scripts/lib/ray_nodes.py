"""Wait until all nodes of a job have joined Ray. Print the names of the nodes that have not.

ray_nodes.py ADDRESSES SECONDS      lib/addresses.sh writes the file ADDRESSES
"""

import sys
import time

import ray

with open(sys.argv[1], encoding="utf-8") as lines:
    names = {line.split()[1] for line in lines}
end = time.monotonic() + float(sys.argv[2])
ray.init(log_to_driver=False, logging_level="ERROR")  # connects to RAY_ADDRESS
missing = names
while missing and time.monotonic() < end:
    missing = names - {node["NodeName"] for node in ray.nodes() if node["Alive"]}
    time.sleep(0.2 if missing else 0)
print("\n".join(sorted(missing)))
