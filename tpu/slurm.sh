#!/usr/bin/env bash
# A run on a SLURM cluster: one process per node, with all GPUs of the node.
#
#   sbatch --nodes=2 --time=24:00:00 tpu/slurm.sh --config CONFIG --workdir DIRECTORY      one run
#   sbatch --array=0-11 tpu/slurm.sh FILE --config CONFIG --workdir DIRECTORY              the runs 0 to 11 of a sweep
#
# Two minutes before the time limit the run saves and exits with code 75; the job is then requeued and resumes. The same
# happens after a preemption if the partition requeues preempted jobs. PYTHON sets the interpreter (default: python).
# Options of sbatch override those below.
#SBATCH --job-name=rljax
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
#SBATCH --output=rljax-%j.log
set -euo pipefail

maximum=${RLJAX_MAX_RESTARTS:-100}
program=("${PYTHON:-python}" -m rljax)
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
  program=("${PYTHON:-python}" -m rljax sweep --index "$SLURM_ARRAY_TASK_ID")
fi
(($#)) || { echo "usage: sbatch tpu/slurm.sh --config CONFIG --workdir DIRECTORY" >&2; exit 2; }

# A process that lost another one exits within the heartbeat limit; after ten minutes, srun kills the remaining ones.
srun --kill-on-bad-exit=0 --wait=600 "${program[@]}" "$@" &
step=$!
trap 'kill -TERM "$step"' TERM # srun forwards it to every process
wait "$step" || true
while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done # a signal to this shell interrupts wait
code=0
wait "$step" || code=$?
echo "rljax: exit code $code"
# Requeue after exit code 75 or death by a signal. A job that is being cancelled is no longer RUNNING.
if ((code == 75 || code >= 128)) && ((code != 130)) && ((${SLURM_RESTART_COUNT:-0} < maximum)) \
  && [[ $(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T) == RUNNING ]]; then
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
