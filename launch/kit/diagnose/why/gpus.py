"""Lists the causes that lie with GPUs, their drivers and what runs on them."""

from __future__ import annotations

from kit.diagnose.why.cause import ANYWHERE, own_cause

GPUS = (
    own_cause(
        "driver-too-old",
        "the node's driver is too old for the image's CUDA",
        "choose an image with an older CUDA ({again:--image IMAGE}), or nodes with a newer "
        "driver; to see the newest CUDA that the driver supports: nvidia-smi | head -4",
        r"CUDA driver version is insufficient[^\n]*",
        r"The NVIDIA driver on your system is too old[^\n]*",
        r"forward compatibility was attempted on non supported HW[^\n]*",
        r"the provided PTX was compiled with an unsupported toolchain[^\n]*",
        r"unsatisfied condition: cuda[^\n]*",
        where=ANYWHERE,
    ),
    own_cause(
        "gpu-not-supported",
        "the image's PyTorch was not built for this kind of GPU",
        "choose an image whose torch supports it: {again:--image IMAGE}; to see what it supports: "
        "python -c 'import torch; print(torch.cuda.get_arch_list())'",
        r"no kernel image is available for execution[^\n]*",
        r"is not compatible with the current PyTorch installation[^\n]*",
    ),
    own_cause(
        "checkpoint-of-a-gpu",
        "the checkpoint's tensors were on a GPU, and none is visible here",
        "use torch.load(..., map_location='cpu'), then .to(device); or ask for GPUs: "
        "{again:--gpus-per-node 8}",
        r"Attempting to deserialize object on a CUDA device[^\n]*",
    ),
    own_cause(
        "no-driver",
        "no NVIDIA driver is visible in the container",
        "ask for GPUs ({again:--gpus-per-node 8}); on the node, check nvidia-smi, and that the "
        "runtime's NVIDIA support (nvidia-container-toolkit, --nv) is installed",
        r"Found no NVIDIA driver on your system[^\n]*",
        r"No CUDA GPUs are available[^\n]*",
        r"could not select device driver[^\n]*gpu[^\n]*",
        r"libcuda\.so[.\d]*: cannot open shared object file[^\n]*",
        r"no CUDA-capable device is detected[^\n]*",
        r"device_ids[^\n]*only work with[^\n]*",
        r"torch\.cuda\.is_available\(\) is False[^\n]*",
        r"nvidia-container-cli: [^\n]*error[^\n]*",
        where=ANYWHERE,
    ),
    own_cause(
        "torch-without-cuda",
        "the PyTorch in {inside} is built for CPUs only",
        "choose an image with CUDA, or build it for GPUs: kit build --device gpu",
        r"Torch not compiled with CUDA enabled",
        r"has no attribute '_cuda_\w+'",
        r"ProcessGroupNCCL is only supported with GPUs[^\n]*",
        r"Distributed package doesn't have NCCL built in[^\n]*",
    ),
    own_cause(
        "no-such-gpu",
        "a rank uses a GPU that it cannot see on its node",
        "ask for as many GPUs as ranks on each node: {again:--gpus-per-node {processes}}; call "
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), and do not change "
        "CUDA_VISIBLE_DEVICES",
        r"CUDA error: invalid device ordinal[^\n]*",
        r"Duplicate GPU detected[^\n]*",
        r"Invalid device id",
        r"device >= 0 && device < num_gpus[^\n]*",
    ),
    own_cause(
        "index-out-of-range",
        "an index is outside its tensor, mostly because a label or a token is too large",
        "compare the largest label or token with the model's size; for a clear message, run one "
        "step on the CPU, or {again:--env CUDA_LAUNCH_BLOCKING=1}",
        r"device-side assert triggered[^\n]*",
        r"index out of range in self[^\n]*",
        (
            r"Assertion [^\n]*(?:index out of bounds|t >= 0 && t < n_classes|srcIndex < "
            r"srcSelectDimSize)[^\n]*failed[^\n]*"
        ),
    ),
    own_cause(
        "illegal-gpu-access",
        "a kernel on the GPU touched memory that is not its own",
        "to find the line: {again:--env CUDA_LAUNCH_BLOCKING=1}; usually, custom kernels "
        "or extensions were built for another torch",
        r"an illegal memory access was encountered[^\n]*",
        (
            r"CUDA error: (?:misaligned address|unspecified launch failure|an illegal "
            r"instruction was encountered)[^\n]*"
        ),
    ),
    own_cause(
        "shape-mismatch",
        "tensors have shapes that do not fit each other",
        "compare the shapes that the line names with the model's arguments; the last batch of an "
        "epoch may be smaller (drop_last=True)",
        r"mat1 and mat2 shapes cannot be multiplied[^\n]*",
        r"The size of tensor a \(\d+\) must match the size of tensor b[^\n]*",
        r"shape '[^'\n]*' is invalid for input of size \d+[^\n]*",
        r"Sizes of tensors must match except in dimension[^\n]*",
        r"Expected input batch_size \(\d+\) to match target batch_size[^\n]*",
        r"stack expects each tensor to be equal size[^\n]*",
        r"Given groups=\d+, weight of size [^\n]*",
        r"(?:size mismatch|inconsistent tensor size|operands could not be broadcast)[^\n]*",
    ),
    own_cause(
        "device-mismatch",
        "tensors of one operation are on different devices",
        "move both to the rank's device: .to(device), with device = torch.device('cuda', "
        "int(os.environ['LOCAL_RANK']))",
        r"Expected all tensors to be on the same device[^\n]*",
        r"Input type \([^)\n]*\) and weight type \([^)\n]*\) should be the same[^\n]*",
        r"Unhandled FakeTensor Device Propagation[^\n]*",
        (
            r"tensor is on \S+(?: device)?, but expected[^\n]*|Tensor on device \S+ is not on "
            r"the expected device[^\n]*"
        ),
    ),
)
