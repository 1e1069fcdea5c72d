"""Hugging Face's Trainer."""

import ranks
import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}


data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(16)]
arguments = TrainingArguments("trained", num_train_epochs=1, per_device_train_batch_size=2, report_to=[], save_strategy="no")
trainer = Trainer(Model(), arguments, train_dataset=data)
trainer.train()
rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
total = trainer.accelerator.reduce(torch.tensor(float(rank + 1)))
print(f"rank {rank} of {world}: the ranks' sum is {total.item():.0f}, after {trainer.state.global_step} steps of 8")
ranks.leave()
