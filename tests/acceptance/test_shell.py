"""Commands and script files in a real worker, and policies that look at what they did."""

from __future__ import annotations

from running import System

WORKFLOW = """
- step: start
  tool:
    - name: count
      kind: shell
      cmds:
        - 'cd scripts'
        - 'echo "{\\"files\\": [$(ls | wc -l)], \\"who\\": \\"$WHO\\"}"'
      env: {WHO: "{{ workload.who }}"}
    - name: missing
      kind: shell
      command: 'echo "no such thing" >&2; exit 4'
      spec:
        policy:
          rules:
            - when: '{{ output.status == "error" and output.error.code == "4" and output.data.exit_code == 4 }}'
              then: {do: continue, set_ctx: {said: "{{ output.data.stderr }}"}}
            - else: {then: {do: fail}}
    - name: settings
      kind: shell
      command: [env]
    - name: greet
      kind: python
      script: {uri: scripts/greet.py, source: {type: file}}
      input: {who: "{{ count.output.who }}", files: "{{ count.output.files[0] }}"}
  next: end
- step: end
  tool:
    kind: noop
    result:
      greeting: "{{ start.results.greet }}"
      said: "{{ ctx.said }}"
      leaks: "{{ 'NOETL_' in start.results.settings.stdout }}"
"""


def test_commands_and_scripts(system: System) -> None:
    scripts = system.folder / "scripts"
    scripts.mkdir()
    (scripts / "greet.py").write_text("return f'{who} has {files} file'")
    path = system.playbook("shell", WORKFLOW, '{who: "it\'s me; exit 1"}')
    with system.client() as client:
        execution = client.submit(client.register(path).path)
        assert execution.result(timeout=60) == {
            "greeting": "it's me; exit 1 has 1 file",
            "said": "no such thing\n",
            "leaks": False,
        }


def test_a_command_that_fails_fails_its_step_with_its_last_words(system: System) -> None:
    path = system.playbook("shell_fails", "- step: start\n  tool: {kind: shell, cmds: ['echo why >&2', 'exit 3']}\n")
    report = system.cli("run", path)
    assert report.returncode == 1
    assert "exit code 3: why" in report.stdout + report.stderr
