"""Lightning's Trainer. PL_TRAINER_DEVICES, PL_TRAINER_NUM_NODES and PL_TRAINER_STRATEGY give what Trainer() leaves open."""

import ranks
import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        inputs, targets = batch
        return (self.layer(inputs) - targets).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        total = self.trainer.strategy.reduce(torch.tensor(float(self.global_rank + 1)), reduce_op="sum")
        print(f"rank {self.global_rank} of {self.trainer.world_size}: the ranks' sum is {total.item():.0f}")


loader = DataLoader(TensorDataset(torch.ones(16, 4), torch.ones(16, 1)), batch_size=2)
trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Model(), loader)
ranks.leave()
