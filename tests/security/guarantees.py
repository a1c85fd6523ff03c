"""What the bridge promises; a test that holds a promise has the mark `guarantee` and its name.

`make reference` writes this list with the files of these tests into SECURITY.md.
"""

PROMISES = {
    "processes": "A program that starts processes or threads without end reaches its own limit, "
    "and no other run notices.",
    "memory": "The memory limit covers the whole sandbox, files in memory included.",
    "output": "Output of any length costs the host no more than its bound, and the result says "
    "what was cut.",
    "descriptors": "Descriptors run out inside the sandbox only.",
    "counters": "What the kernel counts by user (watches, pending signals, descriptors in flight, "
    "pipes, keys, queues, namespaces) stays free for the host's user.",
    "processors": "A program on every processor ends at its deadline and leaves others time.",
    "depth": "Recursion, nesting and crashes are results, without a core file.",
    "ending": "Every run ends by its deadline, whatever signals it ignores or sends.",
    "honest-end": "A program that ends early is never reported as a success.",
    "calls-end": "A call that is running when its run ends is cancelled, and no program reads its "
    "answer.",
    "bridge-killed": "A bridge that is killed takes its programs with it. The next one removes "
    "the rest and leaves the sandboxes of living bridges alone.",
    "engine-lost": "A lost or stopped engine is not reported as a slow program, and the output "
    "until then is kept.",
    "frames-are-text": "Frames that a program prints are text.",
    "frames-give-nothing": "Code that writes to the channel itself gets nothing that its run was "
    "not given.",
    "floods": "Calls and lines without end wait in the program; the host does not keep them.",
    "malformed": "A malformed frame ends its run with a named error, and nothing else.",
    "no-code-comes-out": "The host never builds objects from what a program sends, and a program "
    "changes no interpreter but its own.",
    "no-namespaces": "A program makes and joins no mount and no namespace, so it undoes no layer.",
    "own-processes-only": "A program reads, writes and signals its own processes only.",
    "own-proc": "Of /proc a program sees its own and what `bridge/sandbox/proc_entries.py` lists "
    "with reasons, not the machine's devices, disks and keys. Kubernetes and Landlock show more.",
    "small-kernel": "A program may use the system calls on a list; every other number is refused.",
    "no-local-sockets": "A program reaches no socket of the host and inherits no descriptor.",
    "no-privileges": "A program gets no device, no privilege and no terminal, and the kernel's "
    "own interfaces are closed.",
    "no-network": "A program reaches neither this machine, its neighbours, the internet nor a "
    "resolver.",
    "no-partial-network": "No run has a network that is open for some addresses: there is no list "
    "of allowed addresses to get around.",
    "no-fail-open": "If a layer or a backend is broken or missing, no program runs without it "
    "unless the result says so.",
    "no-secrets": "No environment, file or name of the host is inside, in errors or in the next "
    "run.",
    "fresh-randomness": "No two runs draw the same random numbers.",
    "own-kernel": "A runtime that should bring its own kernel is seen to do so before a program "
    "runs.",
    "layers-seen": "The guest saw each layer of a result from inside, unless the result calls it "
    "unverified.",
    "weaker-tier": "Without namespaces a program still opens, changes and reaches nothing of the "
    "host, and each result calls the tier weaker.",
    "enforced-guard": "If the static guard is enforced, a program that it denies starts nothing.",
    "command-grants": "A command sees what its profile grants and nothing else, or does not start.",
    "command-executables": "A command executes only what its profile names, and cannot replace it.",
    "command-sockets": "A command reaches no socket of the host, and the internet only if granted.",
    "command-secrets": "The secrets that a command is given do not return in plain text.",
    "command-ends": "A pipeline ends at one deadline, within its limits, and leaves nothing.",
    "loop-never-stalls": "Nothing that a server, a program or a client sends keeps the event loop "
    "for more than 250 ms of CPU time; too much input is refused with an error that says so.",
    "names-counted": "A name that is too long is refused before it has an effect, and counts as "
    "a call.",
    "files-out": "Only regular files leave `out`, each whole or not at all, within the run's "
    "quota. No other file is opened, and nothing costs the host or the result more than its bound.",
    "files-believed": "The host believes nothing that a sandbox says of a file: no name leads out "
    "of a directory, no size passes the quota, no file of the user's is replaced unasked or "
    "through a link.",
    "kept-apart": "A caller's files, outputs and sessions are shown and given to that caller "
    "alone, and no link in their directory is followed.",
    "checkpoints": "A checkpoint is read only inside a sandbox. Restoring it runs no constructor "
    "and writes no file outside of the workspace, and a changed one is noticed.",
    "sessions-watched": "What an earlier run of a session has read counts for the later ones.",
    "packages": "A program has only the packages that the settings allow: wheels with the "
    "recorded digest, read-only, whose code runs neither on the host nor before the program.",
    "directories": "A program has the host directories that the settings name, never one that "
    "holds the state of the bridge or an engine. They are read-only unless the settings say "
    "otherwise, and the guest checks that from inside.",
    "out-of-time": "After a run's time is over it makes no call, and the saved session outlasts "
    "the program's last moments.",
    "event-loop": "What a program shows, leaves and keeps costs the host bounded time in "
    "proportion to its size, and keeps no other run waiting.",
    "skills": "Another bridge uses a skill only as the text that a person approved, all of it; "
    "an unknown caller has none unless the policy says so.",
    "kept-through-the-gate": "What outlives a run is written through the gate: no program replaces "
    "or removes a skill that a person wrote or approved unless that person says so, a copy stays, "
    "and the change is recorded first.",
    "kept-names": "A run that learns what another run left counts as having read what that "
    "run had read; names, times, sizes, existence and a server's errors count too.",
    "lying-servers": "A server of the user's that says a tool only reads gains one thing: plans "
    "make its calls, and the audit log calls them reads. No rule and no default believes it, and "
    "a project's server is never believed.",
    "shown-as-sent": "A question, a plan and the audit log show each character of a call's "
    "arguments but known secrets, or give length and digest of what they leave out. No two "
    "different calls are shown alike.",
    "starts": "A server is started or connected to only after that was decided and is in the "
    "audit log. What was said of a name holds for no other definition under it.",
    "shares": "When session places or storage run out, no caller with less than an equal share "
    "loses anything while another has more; callers over HTTP take half of the storage at most.",
    "written-configuration": "Files that programs and commands may write define no server, are "
    "read for none, and hold no code that a server is started from.",
    "working-directory": "Files in the working directory never count as the user's own settings, "
    "approvals or servers, unless a setting names them by a relative path; a warning says so.",
    "cancelled-calls": "While a flow rule would stop a call, cancelling one of that kind is not "
    "passed on: the server is told nothing, and the call runs to its end or its time limit.",
    "learnt-names": "The bridge learns no field names from a run that has read what a flow rule "
    "counts.",
    "start-directory": "A server of the user's own that is an npm or Python package runs no code "
    "of the directory in which it is started.",
    "background-bridge": "No program in a sandbox and no other user reaches the user's background "
    "bridge: its socket has mode 0600 in a directory of mode 0700, and on Linux each end checks "
    "the other's user id.",
    "client-environments": "A client's environment reaches no other client's servers, and no file "
    "of the bridge. Secrets in it are masked in results.",
    "other-users": "Other users of the machine cannot read the bridge's state. If they can change "
    "it, the settings or the user's configurations, the bridge refuses these.",
    "policy-lost": "A policy that was in force and is lost stops every bridge, the next included.",
    "terminal-questions": "While a question stands, the terminal shows nothing else. It begins "
    "with a mark that no program or server can write, and no line typed earlier answers it.",
    "terminal-escapes": "Nothing that programs, servers or records contain controls the terminal, "
    "in pieces of any size, whichever command prints it.",
    "servers-questions": "A server's question has the server's mark on each line, hides nothing, "
    "is bounded, allowed by the policy and recorded, or is refused with a named error.",
    "identified-approvers": "No answer of an unidentified caller approves a call, plan, skill, "
    "server or server start.",
    "audit-floods": "No flood of calls fills the audit log, hides a call in it or removes one; "
    "counts are exact, and no call is made unrecorded.",
    "runs-at-once": "No more runs are active than there are places. The others wait in fair "
    "order, within bounds, and no run that ends or is cancelled keeps a place.",
    "http-clients": "Over HTTP the bridge answers only requests for its own names and port. "
    "Sessions are bounded, end when unused, and leave nothing.",
    "http-admission": "Over HTTP a request without the bridge's token reaches nothing but probes. "
    "Connections, heads, bodies and sessions have bounds, and one caller has half of each at most.",
    "log-floods": "Neither servers' output nor the bridge's log of it fills a disk.",
    "project-servers": "Before a person approved exactly that definition, nothing that a "
    "repository defines is started or connected to, and no file that it names is opened.",
    "names-of-the-user": "No repository takes the name of a server of the user's, or one that "
    "programs spell like it, or turns such a server off.",
    "forbidden-servers": "The bridge does not start a server that the user or their company "
    "forbade in Claude Code, or that a client has switched off.",
}
