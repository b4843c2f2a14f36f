"""From a genome to a request: renders programs and addresses jobs for one run."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from evo.archives.base import Archive
from evo.descriptor import cell_key
from evo.errors import ConfigError
from evo.genome import Candidate, Genome
from evo.job import DeviceInfo, EvaluationRequest, EvaluationSettings, Program, Purpose
from evo.render import build_program, source_hash
from evo.search import Trial
from evo.serial import content_hash
from evo.task import Task
from evo.template import Template


class RequestBuilder:
    """Renders genomes of one task on one device and wraps them as idempotent jobs.

    Args:
        task: The task searched.
        templates: All the task's templates for one backend: the baseline may use one that the
            search does not.
        backend: Backend name, key into the task's baselines.
        device: Device the run measures on.
        settings: How hard to look; a confirm and a duel use the same limits.
        run_id: Unique per run; part of every job id, so that another run is measured afresh.

    Raises:
        ConfigError: If the task names no baseline for the backend.
    """

    def __init__(
        self,
        *,
        task: Task,
        templates: Sequence[Template],
        backend: str,
        device: DeviceInfo,
        settings: EvaluationSettings,
        run_id: str,
    ) -> None:
        self._task = task
        self._templates = {template.name: template for template in templates}
        self._device = device
        self._settings = settings
        self._run_id = run_id
        if backend not in task.baseline:
            raise ConfigError(
                f"task {task.name} names no baseline for backend {backend}: "
                f"add it to task.yaml (has: {', '.join(sorted(task.baseline)) or 'none'})"
            )
        spec = task.baseline[backend]
        template = self._template(spec.template)
        defaults = template.space(task, device).defaults()
        self.baseline_params = {**defaults, **spec.params}
        self.baseline = build_program(task, template, self.baseline_params, device)

    def _template(self, name: str) -> Template:
        try:
            return self._templates[name]
        except KeyError:
            raise ConfigError(
                f"no template {name!r} (allowed: {', '.join(sorted(self._templates))})"
            ) from None

    def program(self, genome: Genome) -> Program:
        """Renders a genome for every workload.

        Raises:
            TemplateError: If the template does not render with these parameters.
        """
        return build_program(
            self._task, self._template(genome.template), genome.params, self._device
        )

    def source_key(self, program: Program) -> str:
        """Hash that is equal for programs whose code and launches are the same."""
        return source_hash(program)

    def request(
        self,
        *,
        label: str,
        program: Program,
        purpose: Purpose,
        limits: EvaluationSettings,
        incumbent: Program | None = None,
    ) -> EvaluationRequest:
        """Wraps a program as a job; the same label and content within a run have the same id."""
        identity = [self._run_id, label, purpose.value, program, incumbent]
        return EvaluationRequest(
            job_id=content_hash(identity) + "-1",
            task_hash=self._task.bundle.task_hash,
            candidate=program,
            baseline=self.baseline,
            incumbent=incumbent,
            purpose=purpose,
            settings=limits,
            scope=self._run_id,
        )

    def for_trial(self, trial: Trial, program: Program, archive: Archive) -> EvaluationRequest:
        """Builds the request of a trial: a plain evaluation, or a duel with its incumbent."""
        if trial.incumbent is not None:
            return self.request(
                label=trial.id,
                program=program,
                purpose=trial.purpose,
                limits=self._settings,
                incumbent=self.program(trial.incumbent.genome),
            )
        floors = {cell_key(elite.cell): elite.objective.low for elite in archive}
        return self.request(
            label=trial.id,
            program=program,
            purpose=trial.purpose,
            limits=replace(self._settings, race_cells=floors),
        )

    def for_confirm(self, candidate: Candidate, limits: EvaluationSettings) -> EvaluationRequest:
        """Builds the request of a confirm pass; each call is a new job, to be measured afresh."""
        return self.request(
            label=f"{candidate.id}-{secrets.token_hex(4)}",
            program=self.program(candidate.genome),
            purpose=Purpose.CONFIRM,
            limits=limits,
        )

    def source(self, genome: Genome) -> str:
        """Returns the code of a genome as rendered for the first workload."""
        return self.program(genome).workloads[0].source
