"""Studies of methods on the shipped base: which pass@k does a method reach for its KL to the base?

python -m experiments.reasoning.study negative
python -m experiments.reasoning.study negative --page

A topic is a page in ``topics``. ``results.json`` has the runs of all topics; an arm that several name is run once. What
a run gave is stored when it ends, so that the same command resumes, and the page has all runs that have ended.
"""

import argparse
import pathlib
from collections.abc import Sequence

from experiments.arms import fill
from experiments.reasoning import page, runs
from experiments.reasoning.page import Claim, Topic
from experiments.reasoning.runs import Arm

W, PASS, STEPS, BONUS = "W-REINFORCE 0.1", "pass@4 training", "GRPO on steps", "entropy bonus"
ONE, FEW, SOURCE = "1 problem", "16 problems", "experiments.reasoning.pieces.few"
FORKS, REST = "20 % of tokens", "the other 80 %"
FOUR, SEQUENCE, EASY, FIXED = "GRPO, 4 updates", "GSPO, 4 updates", "2 to 4 operations", "Dr.GRPO"
UPDATES = {"learner": {"minibatches": 4}}
TASK = "reasoning(names='letters', modulus=11, operations={}, distractors=1, wording='formula', strict=True)"
LATE, DECOUPLED, HIGHER = "GRPO, lag 8", "AReaL, lag 8", "clip-higher, lag 8"
SHORT, TOKENS = "GRPO, 32 steps", "GRPO over tokens"
LOSS, REWARD = "k3 in the loss", "k1 in the reward"
SLOW, FAST, SLOW_NSR, FAST_NSR = "GRPO at 3e-5", "GRPO at 3e-4", "NSR at 3e-5", "NSR at 3e-4"
DEEP, DYNAMIC = "GRPO on 6 operations", "dynamic sampling on 6 operations"
ARMS = {
    "GRPO": Arm("grpo(kl=0.0)"),
    "NSR": Arm("nsr(entropy=0.0)"),
    "PSR": Arm("psr(entropy=0.0)"),
    W: Arm("w_reinforce(positive=0.1, entropy=0.0)"),
    PASS: Arm("grpo(kl=0.0)", fields={"seam": {"advantage": "pass_at_k(4)"}}),
    "RL-ZVP": Arm("rl_zvp()"),
    STEPS: Arm("process_grpo(kl=0.0)", settings="step_reward=1.0"),
    BONUS: Arm("grpo(kl=0.0)", fields={"seam": {"penalty": "entropy(0.05)"}}),
    ONE: Arm("grpo(kl=0.0)", fields={"seam": {"source": f"{SOURCE}()"}}),
    FEW: Arm("grpo(kl=0.0)", fields={"seam": {"source": f"{SOURCE}(16)"}}),
    FORKS: Arm("grpo(kl=0.0)", fields={"seam": {"weight": "+ high_entropy(0.2)"}}),
    REST: Arm("grpo(kl=0.0)", fields={"seam": {"weight": "+ experiments.forking_tokens.pieces.low_entropy(0.8)"}}),
    FOUR: Arm("grpo(kl=0.0)", fields=UPDATES),
    SEQUENCE: Arm("gspo()", fields=UPDATES),
    EASY: Arm("grpo(kl=0.0)", fields={"task": TASK.format("(2, 4)")}),
    FIXED: Arm("dr_grpo()"),
    LATE: Arm("grpo(kl=0.0)", fields={"run": {"lag": 8}, "seam": {"ratio": "token('behaviour')"}}),
    DECOUPLED: Arm("grpo(kl=0.0)", fields={"run": {"lag": 8}, "seam": {"weight": "+ masked_importance(high=5.0)"}}),
    HIGHER: Arm("grpo(kl=0.0, high=0.28)", fields={"run": {"lag": 8}, "seam": {"ratio": "token('behaviour')"}}),
    DEEP: Arm("grpo(kl=0.0)", fields={"task": TASK.format("6")}),
    SHORT: Arm("grpo(kl=0.0)", measured=(16, 24, 32)),
    TOKENS: Arm("grpo(kl=0.0, aggregate=mean_over_tokens())"),
    LOSS: Arm("grpo(kl=0.1)"),
    REWARD: Arm("grpo(kl=0.0)", fields={"seam": {"advantage": "+ charge_kl('k1', 0.1)"}}),
    SLOW: Arm("grpo(kl=0.0)", rate=3e-5),
    SLOW_NSR: Arm("nsr(entropy=0.0)", rate=3e-5),
    FAST: Arm("grpo(kl=0.0)", rate=3e-4),
    FAST_NSR: Arm("nsr(entropy=0.0)", rate=3e-4),
    DYNAMIC: Arm(
        "grpo(kl=0.0)", fields={"task": TASK.format("6"), "batch": {"prompts": 8}, "seam": {"source": "dynamic(2)"}}
    ),
}

TOPICS = {
    "negative": Topic(
        ("GRPO", "NSR", "PSR", W),
        (
            Claim("At equal KL, NSR has a higher pass@256 than GRPO", "NSR", "GRPO", "pass@256", matched="kl"),
            Claim("At equal KL, NSR has a lower pass@1 than GRPO", "NSR", "GRPO", "pass@1", below=True, matched="kl"),
            Claim("NSR raises pass@1", "NSR", "base", "pass@1"),
            Claim("NSR raises pass@256", "NSR", "base", "pass@256"),
            Claim("PSR raises pass@1", "PSR", "base", "pass@1"),
            Claim("PSR lowers pass@256", "PSR", "base", "pass@256", below=True),
            Claim("At equal KL, NSR has a higher pass@256 than PSR", "NSR", "PSR", "pass@256", matched="kl"),
            Claim(f"At equal KL, {W} has a higher pass@1 than NSR", W, "NSR", "pass@1", matched="kl"),
            Claim(f"At equal KL, {W} has a higher pass@256 than GRPO", W, "GRPO", "pass@256", matched="kl"),
        ),
    ),
    "rates": Topic(
        ("GRPO", "NSR", SLOW, SLOW_NSR, FAST, FAST_NSR, SHORT),
        (
            Claim("At 3e-5 and equal KL, NSR has a higher pass@256", SLOW_NSR, SLOW, "pass@256", matched="kl"),
            Claim("At 3e-4 and equal KL, NSR has a higher pass@256", FAST_NSR, FAST, "pass@256", matched="kl"),
            Claim("At 3e-5 and equal KL, NSR has a lower pass@1", SLOW_NSR, SLOW, "pass@1", below=True, matched="kl"),
            Claim("At 3e-4 and equal KL, NSR has a lower pass@1", FAST_NSR, FAST, "pass@1", below=True, matched="kl"),
            Claim(f"{SLOW_NSR} raises pass@256", SLOW_NSR, "base", "pass@256"),
            Claim("After equally many samples, GRPO at 3e-4 is above GRPO at 1e-4 in pass@1", FAST, "GRPO", "pass@1"),
            Claim(f"At equal KL, GRPO at 3e-5 is above {SHORT} in pass@1", SLOW, SHORT, "pass@1", matched="kl"),
            Claim(
                "At equal KL, NSR at 3e-5 is above NSR at 1e-4 in pass@256", SLOW_NSR, "NSR", "pass@256", matched="kl"
            ),
        ),
    ),
    "pass_at_k": Topic(
        ("GRPO", PASS),
        (
            Claim("At equal KL, k = 4 has a higher pass@4 than GRPO", PASS, "GRPO", "pass@4", matched="kl"),
            Claim("At equal KL, k = 4 has a lower pass@1 than GRPO", PASS, "GRPO", "pass@1", below=True, matched="kl"),
            Claim("At equal KL, k = 4 has a higher pass@64 than GRPO", PASS, "GRPO", "pass@64", matched="kl"),
            Claim("At equal KL, k = 4 has a higher pass@256 than GRPO", PASS, "GRPO", "pass@256", matched="kl"),
            Claim("k = 4 raises pass@1", PASS, "base", "pass@1"),
            Claim("k = 4 ends with more entropy than GRPO", PASS, "GRPO", "entropy"),
        ),
    ),
    "process": Topic(
        ("GRPO", STEPS),
        (
            Claim("Steps give a higher pass@1 than outcomes after equally many samples", STEPS, "GRPO", "pass@1"),
            Claim("At equal KL, steps give a higher pass@1 than outcomes", STEPS, "GRPO", "pass@1", matched="kl"),
            Claim("At equal KL, steps give a higher pass@64 than outcomes", STEPS, "GRPO", "pass@64", matched="kl"),
            Claim("Steps raise pass@256", STEPS, "base", "pass@256"),
            Claim("Completions end longer with steps than with outcomes", STEPS, "GRPO", "length"),
        ),
    ),
    "zero_variance": Topic(
        ("GRPO", "RL-ZVP"),
        (
            Claim("RL-ZVP has a higher pass@1 than GRPO after equally many samples", "RL-ZVP", "GRPO", "pass@1"),
            Claim("At equal KL, RL-ZVP has a higher pass@1 than GRPO", "RL-ZVP", "GRPO", "pass@1", matched="kl"),
            Claim("At equal KL, RL-ZVP has a higher pass@64 than GRPO", "RL-ZVP", "GRPO", "pass@64", matched="kl"),
            Claim("RL-ZVP ends with more entropy than GRPO", "RL-ZVP", "GRPO", "entropy"),
        ),
    ),
    "entropy": Topic(
        ("GRPO", BONUS, "NSR", "PSR", W, PASS, STEPS, SHORT),
        (
            Claim("At equal entropy, the bonus has a higher pass@1", BONUS, "GRPO", "pass@1", matched="entropy"),
            Claim("The bonus ends with more entropy than GRPO", BONUS, "GRPO", "entropy"),
            Claim("After equally many samples, the bonus has a lower pass@1", BONUS, "GRPO", "pass@1", below=True),
            Claim("At equal KL, the bonus has a higher pass@64 than GRPO", BONUS, "GRPO", "pass@64", matched="kl"),
            Claim("At equal KL, the bonus has a higher pass@256 than GRPO", BONUS, "GRPO", "pass@256", matched="kl"),
            Claim(f"At equal entropy, it is above {SHORT} in pass@1", BONUS, SHORT, "pass@1", matched="entropy"),
        ),
        law=True,
    ),
    "one_example": Topic(
        ("GRPO", ONE, FEW),
        (
            Claim("1 problem raises pass@1", ONE, "base", "pass@1"),
            Claim("After equally many samples, 1 problem has a lower pass@1", ONE, "GRPO", "pass@1", below=True),
            Claim("1 problem raises pass@256", ONE, "base", "pass@256"),
            Claim("16 problems raise pass@1", FEW, "base", "pass@1"),
            Claim("After equally many samples, 16 problems have a lower pass@1", FEW, "GRPO", "pass@1", below=True),
            Claim("16 problems raise pass@256", FEW, "base", "pass@256"),
            Claim("At equal KL, 16 problems have a higher pass@64 than 1", FEW, ONE, "pass@64", matched="kl"),
        ),
    ),
    "forking": Topic(
        ("GRPO", FORKS, REST),
        (
            Claim(f"After equally many samples, {FORKS} have a higher pass@1", FORKS, "GRPO", "pass@1"),
            Claim(f"{FORKS} raise pass@1", FORKS, "base", "pass@1"),
            Claim(f"At equal KL, {FORKS} have a higher pass@64 than GRPO", FORKS, "GRPO", "pass@64", matched="kl"),
            Claim(f"{FORKS} end with more entropy than GRPO", FORKS, "GRPO", "entropy"),
            Claim(f"After equally many samples, {REST} have a lower pass@1", REST, "GRPO", "pass@1", below=True),
        ),
    ),
    "gspo": Topic(
        ("GRPO", FOUR, SEQUENCE),
        (
            Claim("After equally many samples, GSPO has a higher pass@1 than GRPO", SEQUENCE, FOUR, "pass@1"),
            Claim("At equal KL, GSPO has a higher pass@1 than GRPO", SEQUENCE, FOUR, "pass@1", matched="kl"),
            Claim("At equal KL, GSPO has a higher pass@64 than GRPO", SEQUENCE, FOUR, "pass@64", matched="kl"),
            Claim("GSPO clips more tokens than GRPO", SEQUENCE, FOUR, "clipped"),
            Claim("GSPO ends with more entropy than GRPO", SEQUENCE, FOUR, "entropy"),
            Claim("GRPO with 4 updates has a higher pass@1 than with 1", FOUR, "GRPO", "pass@1"),
        ),
    ),
    "depth": Topic(
        ("GRPO", EASY),
        (
            Claim(f"RL on {EASY} raises pass@1 of 6", EASY, "base", "pass@1"),
            Claim("After equally many samples, it has a lower pass@1", EASY, "GRPO", "pass@1", below=True),
            Claim(f"RL on {EASY} raises pass@256 of 6", EASY, "base", "pass@256"),
            Claim("At equal KL, it has a lower pass@1", EASY, "GRPO", "pass@1", below=True, matched="kl"),
            Claim("At equal KL, it has a lower pass@64", EASY, "GRPO", "pass@64", below=True, matched="kl"),
        ),
    ),
    "dr_grpo": Topic(
        ("GRPO", FIXED),
        (
            Claim("Completions end shorter with Dr.GRPO than with GRPO", FIXED, "GRPO", "length", below=True),
            Claim("After equally many samples, Dr.GRPO has a higher pass@1", FIXED, "GRPO", "pass@1"),
            Claim("At equal KL, Dr.GRPO has a higher pass@1", FIXED, "GRPO", "pass@1", matched="kl"),
            Claim("At equal KL, Dr.GRPO has a higher pass@64", FIXED, "GRPO", "pass@64", matched="kl"),
        ),
    ),
    "staleness": Topic(
        ("GRPO", LATE, DECOUPLED),
        (
            Claim("At lag 8, AReaL has a higher pass@1 than GRPO", DECOUPLED, LATE, "pass@1"),
            Claim("GRPO has a lower pass@1 at lag 8 than without", LATE, "GRPO", "pass@1", below=True),
            Claim("AReaL at lag 8 has a lower pass@1 than GRPO without", DECOUPLED, "GRPO", "pass@1", below=True),
            Claim("At lag 8 and equal KL, AReaL has a higher pass@1", DECOUPLED, LATE, "pass@1", matched="kl"),
            Claim("GRPO ends with more entropy at lag 8 than without", LATE, "GRPO", "entropy"),
        ),
    ),
    "clip_higher": Topic(
        ("GRPO", LATE, HIGHER),
        (
            Claim("At lag 8, clip-higher ends with more entropy", HIGHER, LATE, "entropy"),
            Claim("At lag 8, clip-higher has a higher pass@1", HIGHER, LATE, "pass@1"),
            Claim("At lag 8 and equal KL, clip-higher has a higher pass@1", HIGHER, LATE, "pass@1", matched="kl"),
            Claim("At lag 8 and equal KL, clip-higher has a higher pass@64", HIGHER, LATE, "pass@64", matched="kl"),
        ),
    ),
    "token_mean": Topic(
        ("GRPO", TOKENS, "NSR"),
        (
            Claim("After equally many samples, tokens have a higher pass@1 than rows", TOKENS, "GRPO", "pass@1"),
            Claim("At equal KL, tokens have a higher pass@1 than rows", TOKENS, "GRPO", "pass@1", matched="kl"),
            Claim("Completions end longer with tokens than with rows", TOKENS, "GRPO", "length"),
            Claim(f"At equal KL, NSR has a higher pass@256 than {TOKENS}", "NSR", TOKENS, "pass@256", matched="kl"),
            Claim("At equal KL, NSR has a lower pass@1", "NSR", TOKENS, "pass@1", below=True, matched="kl"),
        ),
    ),
    "kl_placement": Topic(
        ("GRPO", LOSS, REWARD),
        (
            Claim(f"At equal KL, {REWARD} is above {LOSS} in pass@1", REWARD, LOSS, "pass@1", matched="kl"),
            Claim(f"{LOSS} ends nearer to the base than GRPO", LOSS, "GRPO", "kl", below=True),
            Claim(f"{REWARD} ends nearer to the base than GRPO", REWARD, "GRPO", "kl", below=True),
            Claim(f"At equal KL, {LOSS} is above GRPO in pass@1", LOSS, "GRPO", "pass@1", matched="kl"),
            Claim(f"At equal KL, {REWARD} is above GRPO in pass@1", REWARD, "GRPO", "pass@1", matched="kl"),
            Claim(f"At equal KL, {REWARD} is above GRPO in pass@64", REWARD, "GRPO", "pass@64", matched="kl"),
        ),
    ),
    "dynamic": Topic(
        ("GRPO", DEEP, DYNAMIC),
        (
            Claim("After equally many samples, dynamic sampling has a higher pass@1", DYNAMIC, DEEP, "pass@1"),
            Claim("At equal KL, dynamic sampling has a higher pass@1", DYNAMIC, DEEP, "pass@1", matched="kl"),
            Claim("At equal KL, dynamic sampling has a higher pass@64", DYNAMIC, DEEP, "pass@64", matched="kl"),
            Claim("Dynamic sampling raises pass@1", DYNAMIC, "base", "pass@1"),
            Claim("GRPO on 6 has a lower pass@1 than on 4 to 6", DEEP, "GRPO", "pass@1", below=True),
        ),
    ),
}
RESULTS = pathlib.Path(__file__).parent / "results.json"
PAGES = "topics"


def write(topic: str, study: runs.Runs) -> str:
    """Write the figure and the tables of a topic to its folder, by the results; return the tables."""
    folder, results = study.file.parent / PAGES / topic, page.Results(study.records, study.size)
    folder.mkdir(parents=True, exist_ok=True)
    page.draw(results, TOPICS[topic], folder / "frontier.png")
    written = page.text(results, TOPICS[topic])
    fill(folder / "README.md", written)
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the arms of a topic and write its page after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic", choices=[*TOPICS])
    parser.add_argument("--quick", action="store_true", help="a random policy, too short to learn")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="file that stores the runs")
    parser.add_argument("--arms", nargs="*", help="of the topic; by default all")
    parser.add_argument("--seeds", type=int, nargs="*", default=page.SEEDS, help="of the runs")
    parser.add_argument("--page", action="store_true", help="run nothing")
    given = parser.parse_args(arguments)
    study = runs.Runs(runs.QUICK if given.quick else runs.Size(), given.results)
    if not given.page:
        names = given.arms or TOPICS[given.topic].arms
        if unknown := [name for name in names if name not in TOPICS[given.topic].arms]:
            parser.error(f"--arms: {unknown[0]!r} is not one of {', '.join(TOPICS[given.topic].arms)}.")
        for name in study.run({name: ARMS[name] for name in names}, given.seeds):
            print(name, flush=True)
            write(given.topic, study)
    print(write(given.topic, study))


if __name__ == "__main__":
    main()
