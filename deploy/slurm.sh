#!/usr/bin/env bash
# Train on 8 nodes of 8 GPUs each:   sbatch deploy/slurm.sh gpt --data corpus.txt --tokens 30000000000 --out runs/gpt
#SBATCH --job-name=chainrule
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 --max-restarts 3 \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:29500" \
  -m chainrule train "$@" --resume
