"""Inputs to a diagnosis: facts, then every rule, then what the findings leave of each other (M3).

The list of rules is a list that can be read; each is pure and knows nothing of the others.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from linkbound.doctor import (
    rules_budget,
    rules_fabric,
    rules_grants,
    rules_host,
    rules_iommu,
    rules_library,
    rules_nvlink,
    rules_nvlink_rates,
    rules_nvlink_whole,
    rules_paths,
    rules_pcie,
    rules_rates,
    rules_runs,
    rules_switches,
    suspicions,
)
from linkbound.doctor.probe_acs import AcsReading
from linkbound.doctor.read_inputs import read_inputs
from linkbound.doctor.types import (
    Diagnosis,
    Environment,
    Facts,
    KernelArguments,
    Place,
    Symptom,
)
from linkbound.doctor.vocabulary import vocabulary
from linkbound.evidence.types import Finding, Level, Severity
from linkbound.topology.types import Machine

Rule = Callable[[Facts], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    rules_iommu.iommu_faults,
    rules_iommu.kernel_arguments,
    rules_iommu.library_warning,
    rules_iommu.iommu_domains,
    rules_iommu.acs,
    rules_iommu.acs_override_warning,
    rules_grants.denied,
    rules_grants.registry_forbids,
    rules_grants.refused,
    rules_grants.grant_disagrees,
    rules_grants.mixed_models,
    rules_grants.disabled_by_environment,
    rules_grants.policy_off,
    rules_grants.env_suspected,
    rules_grants.waived,
    rules_grants.equal_matrices,
    rules_nvlink.links_down,
    rules_nvlink.fabric_gap,
    rules_nvlink_whole.wholeness,
    rules_nvlink_whole.graph_whole,
    rules_nvlink.no_links_at_all,
    rules_nvlink.xgmi,
    rules_nvlink.amd_hops,
    rules_nvlink_rates.nvlink_normal,
    rules_fabric.fabric_manager,
    rules_fabric.multicast,
    rules_pcie.links,
    rules_pcie.limited_by_kernel,
    rules_pcie.query_rows,
    rules_pcie.chipset_slots,
    rules_pcie.bar1,
    rules_paths.sockets,
    rules_paths.library_paths,
    rules_paths.nics,
    rules_rates.slower_than_staging,
    rules_rates.slower_collectives,
    rules_rates.one_slow_device,
    rules_rates.near_slower,
    rules_rates.two_groups,
    rules_rates.uniform,
    rules_rates.pcie_normal,
    rules_rates.slow_host_link,
    rules_budget.over_budget,
    rules_rates.write_collapse,
    rules_host.shared_memory,
    rules_host.virtual,
    rules_host.guests,
    rules_host.empty_affinity,
    rules_host.cpu_masks,
    rules_host.wsl,
    rules_host.mig,
    rules_host.container,
    rules_host.driver_errors,
    rules_library.transports,
    rules_library.network_suspected,
    rules_library.messages,
    rules_library.versions,
    rules_runs.corruption,
    rules_runs.hang,
    rules_runs.wrong_values,
    rules_runs.single_gpu,
    rules_runs.incomplete,
    rules_runs.inconsistent,
    suspicions.lost_transfers,
    suspicions.slow_transfers,
    rules_switches.oversubscribed,
)
_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_LEVELS = (Level.SEEN, Level.SUSPECTED, Level.HEALTHY)
_CONTRARY = {"iommu-translating": "iommu-passthrough", "acs-redirect": "acs-clear"}


def diagnose(inputs: Sequence[tuple[str, bytes]], symptom: Symptom | None = None) -> Diagnosis:
    """What the inputs (name and content) show, worst first; inputs that none reads are listed."""
    reading = read_inputs(inputs, symptom)
    return Diagnosis(
        symptom=symptom,
        findings=findings_of(reading.facts),
        read=reading.read,
        unread=reading.unread,
        remarks=(*_contradicted(reading.facts), *_hidden(reading.facts)),
    )


def diagnose_live(
    machine: Machine,
    environment: Environment,
    symptom: Symptom | None = None,
    acs: AcsReading | None = None,
) -> Diagnosis:
    """What this host's own map, environment and ports show, without any measurement."""
    facts = Facts(
        symptom=symptom,
        machines=(machine,),
        environment=environment,
        kernel_arguments=_live_arguments(machine, environment),
        acs=acs.ports if acs else (),
    )
    closed = (
        f"ACS control of {', '.join(acs.denied)} is closed to this user: run as root to see "
        "whether peer traffic is sent up to the root complex."
        if acs and acs.denied
        else None
    )
    return Diagnosis(
        symptom=symptom,
        findings=findings_of(facts),
        read=(),
        unread=(),
        remarks=(*machine.notes, *((closed,) if closed else ())),
    )


def _live_arguments(machine: Machine, environment: Environment) -> tuple[KernelArguments, ...]:
    """The command line, where it matters: without IOMMU groups no IOMMU is at work."""
    line = environment.command_line or ""
    if not line or ("iommu" not in line and "groups (" not in machine.host.get("iommu", "")):
        return ()
    place = Place(source="/proc/cmdline")
    return (KernelArguments(place=place, words=tuple(line.split()), in_use=True),)


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """The findings of all rules, worst first; what is seen is not suspected as well."""
    found = [finding for rule in RULES for finding in rule(facts)]
    certain = {finding.code for finding in found if finding.level is Level.SEEN}
    kept = [
        finding
        for finding in dict.fromkeys(found)
        if finding.level is Level.SEEN
        or (finding.level is Level.SUSPECTED and finding.code not in certain)
        or (finding.level is Level.HEALTHY and not _is_contradicted(finding, certain))
    ]
    order = list(vocabulary())
    return tuple(
        sorted(
            _together(kept),
            key=lambda finding: (
                _SEVERITIES.index(finding.severity),
                _LEVELS.index(finding.level),
                order.index(finding.code),
            ),
        )
    )


def _is_contradicted(finding: Finding, certain: set[str]) -> bool:
    """A link that is down ends the word that all is joined; `iommu=pt` ends no DMA fault."""
    down = finding.code == "nvlink-whole" and "nvlink-down" in certain
    return down or any(
        finding.code == healthy and code in certain for code, healthy in _CONTRARY.items()
    )


def _together(findings: Iterable[Finding]) -> list[Finding]:
    """One suspicion, and one word of health, a code: several reasons become one finding.

    Words of health that mean different things stay apart.
    """
    found: dict[tuple[str, Level, str, int], Finding] = {}
    for number, finding in enumerate(findings):
        own = number if finding.level is Level.SEEN else 0
        key = (finding.code, finding.level, finding.why, own)
        known = found.get(key)
        if known is not None:
            finding = structs.replace(known, seen=f"{known.seen} {finding.seen}")
        found[key] = finding
    return list(found.values())


def _hidden(facts: Facts) -> tuple[str, ...]:
    """What an input could not show because of how it was taken."""
    return tuple(
        f"{text.source}: lspci ran without root, so ACS control could not be read."
        for text in facts.texts
        if "Capabilities: <access denied>" in text.text
    )


def _contradicted(facts: Facts) -> tuple[str, ...]:
    """What in the inputs speaks against the symptom that was reported."""
    if facts.symptom is not Symptom.CORRUPT:
        return ()
    clean = [
        f"{run.source}: {len(run.rows)} sizes on {len(run.devices)} GPUs were verified, 0 wrong."
        for run in facts.runs
        if len(run.devices) > 1
        and run.rows
        and run.out_of_bounds == 0
        and all(row.out_of_place.wrong == 0 for row in run.rows)
    ]
    passed = [
        f"{check.place}: {check.pair} was read back at its owner and is right."
        for check in facts.peer_checks
        if check.correct
    ]
    return tuple(f"Against the symptom: {text}" for text in (*clean, *passed))
