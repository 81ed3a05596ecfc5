from helpers import REPOSITORY
from mutants import MUTANTS


def test_every_mutant_finds_its_line_and_its_test():
    """A line that was rewritten must take its mutant along."""
    stale = [mutant.name for mutant in MUTANTS if (REPOSITORY / mutant.file).read_text().count(mutant.old) != 1]
    names = [mutant.name for mutant in MUTANTS]
    missing = []
    for mutant in MUTANTS:
        file, _, name = mutant.test.partition("::")
        if name and f"def {name}(" not in (REPOSITORY / "tests" / file).read_text():
            missing.append(mutant.test)
    assert (stale, missing, len(names)) == ([], [], len(set(names)))
