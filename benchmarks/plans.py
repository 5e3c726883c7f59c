"""What `run.py` measures, and how long."""

from __future__ import annotations

from dataclasses import dataclass

ALLOCATORS = {
    "default": {},  # as a user has it
    "pinned": {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296"},  # SB3 at its best
}
MAIN = (
    "sb3",
    "sb3:again",
    "ours:auto",
    "ours:delta/2",
    "ours:zstd3",
    "published:zstd-3",
    "published:lz4-block/1",
    "plain:zstd3",
    "cpprb",
    "torchrl:LazyTensorStorage",
    "torchrl:LazyMemmapStorage",
    "torchrl:CompressedListStorage",
)
MORE = (
    "ours:delta",
    "ours:none",
    "ours:rle",
    "ours:rle-jit",
    "ours:zstd-3",
    "ours:zstd10",
    "ours:lz4-block/1",
    "ours:lz4-frame/1",
    "ours:igzip1",
    "ours:gzip1",
    "published:zstd3",
    "published:igzip1",
    "published:gzip1",
    "published:rle-jit",
    "published:none",
)
FEW = ("MsPacman", "Pong", "Seaquest", "doom-deathmatch-rgb", "doom-deathmatch-labels", "HalfCheetah")
# Looked at for the first time when all was done: nothing was chosen or tuned on them.
UNTOUCHED = (
    "RoadRunner",
    "Kangaroo",
    "Centipede",
    "Qbert",
    "Hero",
    "doom-health_gathering_supreme-labels",
    "doom-rocket_basic-labels",
)
# They were untouched as well, and showed what was slow: the rule of `auto` was changed, how batches are decoded, how
# masks are written and read.
HARD = (
    "Riverraid",
    "Zaxxon",
    "Frostbite",
    "doom-defend_the_center-labels",
    "doom-predict_position-labels",
    "doom-deadly_corridor-labels",
    "doom-defend_the_line-labels",
    "doom-take_cover-labels",
)
# Scenarios in RGB with their own buttons: how they are trained on. Those that were looked at while this was made, and
# those that were not before they were measured.
OWN = (
    "deathmatch",
    "take_cover",
    "my_way_home",
    "defend_the_center",
    "health_gathering_supreme",
    "predict_position",
    "simpler_basic",
    "rocket_basic",
)
UNTOUCHED_OWN = ("basic", "deadly_corridor", "defend_the_line", "health_gathering")
# With six buttons that lead anywhere; of the last three least is left out.
SCENES = (
    "deathmatch",
    "deadly_corridor",
    "defend_the_line",
    "take_cover",
    "health_gathering",
    "my_way_home",
    "defend_the_center",
    "rocket_basic",
    "health_gathering_supreme",
    "predict_position",
)
MANY = (
    *FEW,
    "Breakout",
    "SpaceInvaders",
    "Enduro",
    "doom-health_gathering-rgb",
    "doom-health_gathering-labels",
    *UNTOUCHED,
    *HARD,
)


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long.

    Attributes:
        more_of: what is measured on pictures of these endings, too: fast methods, where `auto` takes a small one.
        all_methods_on: recordings on which `MORE` subjects are measured, too.
        rows: steps of the 4 envs that a buffer holds: of stacked frames, of single images, of vectors.
        rounds: turns of each subject at each measure.
    """

    recordings: tuple[str, ...]
    rounds: int
    rows: tuple[int, int, int]
    subjects: tuple[str, ...] = MAIN
    more_of: tuple[tuple[str, str], ...] = (
        ("-rgb", "ours:palette+near"),
        ("-rgb", "ours:palette+none"),
        ("-labels", "ours:near"),
    )
    all_methods_on: tuple[str, ...] = ()
    allocators: tuple[str, ...] = tuple(ALLOCATORS)

    def rows_of(self, recording: str) -> int:
        return self.rows[1 if recording.startswith("doom") else 2 if recording == "HalfCheetah" else 0]

    def processes_of(self, recording: str) -> int:
        """Return how many processes of SB3's buffer and of ours are measured, one after another.

        A call with vectors takes 3 us; where the objects of a process happen to lie makes some per cent of it.
        """
        return 5 if recording == "HalfCheetah" else 1

    def subjects_of(self, recording: str) -> tuple[str, ...]:
        more = tuple(subject for ending, subject in self.more_of if recording.endswith(ending))
        return self.subjects + more + (MORE if recording in self.all_methods_on else ())


PRESETS = {
    "quick": Plan(FEW, rounds=7, rows=(2500, 2500, 6000)),
    "untouched": Plan(
        (*UNTOUCHED, *HARD),
        rounds=7,
        rows=(2500, 2500, 6000),
        subjects=tuple(subject for subject in MAIN if subject not in ("ours:zstd3", "published:lz4-block/1")),
    ),
    "pictures": Plan(
        (
            *(f"doom-{scene}-own-rgb" for scene in (*UNTOUCHED_OWN, *OWN)),
            *(f"doom-{scene}-rgb" for scene in SCENES[-3:]),
        ),
        rounds=7,
        rows=(2500, 2500, 6000),
        subjects=tuple(
            subject
            for subject in MAIN
            if subject
            not in (
                "ours:delta/2",
                "ours:zstd3",
                "published:lz4-block/1",
                "torchrl:LazyMemmapStorage",
                "torchrl:CompressedListStorage",  # in the preset `quick`; it would take as long as all others together
            )
        ),
    ),
    "full": Plan(
        MANY,
        rounds=9,
        rows=(2500, 2500, 6000),
        all_methods_on=("MsPacman", "doom-deathmatch-rgb", "doom-deathmatch-labels"),
    ),
}
