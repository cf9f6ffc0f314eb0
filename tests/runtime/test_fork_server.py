"""Children of the fork server have torch imported from the start: each would import it again, for seconds."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection


def tell(sender: Connection, names: list[str]) -> None:
    sender.send([name for name in names if name not in sys.modules])


def test_children_have_torch_from_the_start() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    needed = ["torch.distributed.fsdp", "torchvision", "timm", "dinoskip.training.loop", "dinoskip.features.writer"]
    child = multiprocessing.get_context("forkserver").Process(target=tell, args=(sender, needed))
    child.start()
    assert receiver.poll(120)
    assert receiver.recv() == []
    child.join(10)
