# SPDX-License-Identifier: Apache-2.0
"""The cases of tests/gpu/run, which checks, builds and starts this. Standard library only.

Each case starts processes, breaks one in a known way, and holds what Mycroft says against
the truth, which the processes write and Mycroft never reads. All times are nanoseconds of
CLOCK_MONOTONIC, Mycroft's clock.
"""

import argparse
import datetime
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time

HEALTHY_S, FAULT_S, AFTER_S = 3.0, 5.0, 1.5
MEASURE_S = 2.5
WORK_MS_SLACK = 0.5  # how much longer than asked a kernel may be on the record
RANKS = 2
CULPRIT = 1

# name: component of the culprit, kinds of incident that are right. What stood still and goes
# on again is told as slow.
CASES = {
    "healthy": (None, ()),
    "late": ("host", ("slow",)),
    "slow": ("gpu", ("slow",)),
    "stopped": ("host", ("stuck", "absent", "slow")),
    "blocked": ("gpu", ("stuck", "slow")),
}
TRUTH = {
    "healthy": "no fault",
    "late": "rank 1 host: sleeps 200 ms before each collective",
    "slow": "rank 1 gpu: 200 ms of kernel before each collective",
    "stopped": "rank 1 host: SIGSTOP for %g s" % FAULT_S,
    "blocked": "rank 1 gpu: its stream hangs for %g s" % FAULT_S,
}
WATCHING, ARMED = 1, 2  # enum mc_gpu_state of bpf/abi/gpu_board.h
MODES = ("off", "plugin", "plugin + CUPTI")


class Wrong(Exception):
    """The case cannot go on; the text says why."""


class Out(Exception):
    """No time is left."""


def now_ns():
    return time.monotonic_ns()


class Lab:
    """Starts programs and ends them, whatever happens."""

    def __init__(self, arguments):
        self.a = arguments
        self.deadline = time.monotonic() + arguments.limit
        self.children = []
        self.mycroft = os.path.join(arguments.build, "bin", "mycroft")
        self.versions = {}
        self.probes = []  # arguments for `mycroft record`

    def left(self):
        return self.deadline - time.monotonic()

    def path(self, name):
        return os.path.join(self.a.work, name)

    def start(self, log, command, environment=None):
        env = dict(os.environ)
        for name in ("NCCL_PROFILER_PLUGIN", "CUDA_INJECTION64_PATH", "MYCROFT_LEVEL",
                     "MYCROFT_CUPTI", "NCCL_DEBUG_FILE"):
            env.pop(name, None)
        env.update(environment or {})
        if self.left() < 2:
            raise Out()
        with open(self.path(log + ".out"), "wb") as out, open(self.path(log + ".err"), "wb") as err:
            child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=err, start_new_session=True)
        child.log = log
        self.children.append(child)
        return child

    def end(self, child, sig=signal.SIGTERM, seconds=15):
        """Asks a child to end; its exit code, or None when it had to be killed."""
        try:
            if child.poll() is None:
                child.send_signal(sig)
            return child.wait(max(1, min(seconds, self.left() + 5)))
        except subprocess.TimeoutExpired:
            self.kill(child)
            return None
        finally:
            if child in self.children:
                self.children.remove(child)

    @staticmethod
    def kill(child):
        try:
            os.killpg(child.pid, signal.SIGKILL)  # ends stopped processes, too
        except ProcessLookupError:
            pass
        child.wait()

    def kill_all(self):
        for child in self.children:
            self.kill(child)
        self.children = []

    def wait_for(self, what, found, seconds, children):
        """Polls until found() is something; the children must live."""
        until = time.monotonic() + min(seconds, self.left())
        while True:
            value = found()
            if value:
                return value
            ended = [child for child in children if child.poll() is not None]
            if ended and found():  # its last words
                return found()
            if ended:
                raise Wrong("%s ended (%s): %s" % (ended[0].log, ended[0].returncode,
                                                   self.last_words(ended[0])))
            if time.monotonic() > until:
                if self.left() < 1:
                    raise Out()
                raise Wrong("no %s within %g s; %s" % (what, seconds, self.last_words(children[0])))
            time.sleep(0.02)

    def last_words(self, child):
        text = ""
        for suffix in (".err", ".out"):
            with open(self.path(child.log + suffix), errors="replace") as f:
                lines = [line.strip() for line in f if line.strip()]
            errors = [line for line in lines if line.startswith("error:") or " WARN " in line]
            text = text or (errors or lines or [""])[-1]
        return text or "it said nothing"

    def tool(self, command, seconds=20, codes=(0,)):
        """What a program printed; Wrong when it fails."""
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, check=False,
                                  timeout=max(1, min(seconds, self.left())))
        except subprocess.TimeoutExpired:
            raise Wrong("%s did not end in time" % " ".join(command[:2])) from None
        if done.returncode not in codes:
            raise Wrong("%s: exit code %d: %s" % (
                " ".join(command[:2]), done.returncode,
                done.stderr.decode(errors="replace").strip()[-300:]))
        return done.stdout.decode(errors="replace")

    def try_probes(self):
        """How it is with the eBPF probes, in words. Where there is no BPF at all, Mycroft is
        run without them."""
        command = [self.mycroft, "record", "-q", "-d", "100ms", "-o", self.path("probes.mycroft")]
        try:
            self.tool(command, codes=(0, 3, 4, 5))
            return "those that attach"
        except Wrong as e:
            self.probes = ["--no-probes"]
            return "none: %s" % e

    def board(self, pid):
        program = os.path.join(self.a.build, "bin", "show_gpu_board")
        return json.loads(self.tool([program, str(pid)]))

    def mycroft_json(self, *arguments):
        return json.loads(self.tool([self.mycroft, *arguments], codes=(0, 3, 4)))


def events(path):
    """The JSON lines that are whole, by name of the event."""
    found = {}
    try:
        with open(path, encoding="utf-8") as f:
            for line in f:
                try:
                    event = json.loads(line)
                except ValueError:
                    break
                found.setdefault(event["event"], event)
    except OSError:
        pass
    return found


def board_losses(board):
    # A late buffer was read, so it is no loss.
    return sum(n for cause, n in board["lost"].items() if cause != "late_buffer")


def with_reasons(text, why):
    return text + (" -- " + ", ".join(why) if why else "")


def row(case, truth, verdict="", right=False, **more):
    return {"case": case, "truth": truth, "verdict": verdict, "right": right,
            "seconds": more.pop("seconds", None), "lost": more.pop("lost", None),
            "clock": more.pop("clock", None), **more}


# ---- a process without NCCL -------------------------------------------------------------


def hang_stream(board):
    for stream in board["streams"]:
        oldest = stream["oldest"]
        if oldest and oldest["kernel"] == "mycroft_test_hang" and stream["pending"] != "none":
            return stream
    return None


def run_busy(lab, name):
    """Rows: the hanging kernel was seen while it ran; all work was counted; with records, how
    long its kernels took."""
    records = name == "busy-records"
    truth_file = lab.path(name + ".truth")
    busy = lab.start(name, [os.path.join(lab.a.build, "gpu", "busy"), truth_file, str(FAULT_S)], {
        "CUDA_INJECTION64_PATH": os.path.join(lab.a.build, "lib", "libmycroft-cupti.so"),
        "MYCROFT_CUPTI": "activity" if records else "callbacks"})
    truth = lambda: events(truth_file)
    lab.wait_for("start of CUDA", lambda: "ready" in truth(), 40, [busy])
    lab.versions.update(truth()["ready"])
    board = lab.board(busy.pid)
    # Its `problem` would be that no kernel is NCCL's.
    if board["state"] not in (WATCHING, ARMED) or (records and not board["layout_known"]):
        raise Wrong("the board says: " + board["problem"])
    hang_ns = lab.wait_for("launch of the hanging kernel", lambda: truth().get("hang"), 10,
                           [busy])["t_ns"]
    seen, first_s = [], None
    while "hang_end" not in truth():
        board = lab.board(busy.pid)
        stream = hang_stream(board)
        # The program may have ended the wait since the board was read.
        if stream and "hang_end" not in truth():
            seen.append((board["now_ns"], stream))
            if first_s is None:
                first_s = (board["now_ns"] - hang_ns) / 1e9
        if busy.poll() is not None:
            raise Wrong("busy ended: " + lab.last_words(busy))
        if now_ns() - hang_ns > (FAULT_S + 10) * 1e9:
            raise Wrong("the hanging kernel did not end")
        time.sleep(0.25)
    done = lab.wait_for("end of the work", lambda: truth().get("done"), 5, [busy])
    board = lab.board(busy.pid)
    if records:  # the last buffers are on their way
        for _ in range(20):
            works = [n for n in board["names"] if n["name"] == "mycroft_test_work"]
            if works and works[0]["count"] >= done["kernels"] - 1:
                break
            time.sleep(0.25)
            board = lab.board(busy.pid)
    save(lab, name + ".board.json", {"during": seen[-1:] and seen[-1][1], "after": board})
    ended = lab.end(busy)
    common = {"lost": board_losses(board), "clock": board["gpu_clock"]}

    verdict, right, why = "not seen", False, []
    if seen:
        stream = seen[-1][1]
        age_s = stream["oldest"]["age_ns"] / 1e9
        if abs(stream["oldest"]["launch_ns"] - hang_ns) > 250e6:
            why.append("launch is %.3f s off" % ((stream["oldest"]["launch_ns"] - hang_ns) / 1e9))
        if age_s < 2:
            why.append("it was not seen growing old")
        if stream["kernels"] != 1 or sum(stream["copies"].values()) != 0:
            why.append("it is on the wrong stream")
        if not any(s["pending"] == "unfinished" for _, s in seen):
            why.append("never proved unfinished while the host waited")
        if hang_stream(board):
            why.append("still shown after its end")
        verdict = "mycroft_test_hang, %.1f s old, stream %s, %s" % (age_s, stream["stream_id"],
                                                                   stream["pending"])
        right = not why
    rows = [row(name, "mycroft_test_hang hangs for %g s on a stream of its own" % FAULT_S,
                with_reasons(verdict, why), right, seconds=first_s, **common)]

    counted = {"kernels": sum(s["kernels"] for s in board["streams"]),
               "h2d": sum(s["copies"]["htod"] for s in board["streams"]),
               "d2h": sum(s["copies"]["dtoh"] for s in board["streams"])}
    text = "%(kernels)d kernels, %(h2d)d copies to the GPU, %(d2h)d to the host"
    rows.append(row(name + ", counts", text % done, text % counted,
                    all(counted[key] == done[key] for key in counted), **common))
    if records:
        works = [n for n in board["names"] if n["name"] == "mycroft_test_work"]
        asked_ms = done["work_ns"] / 1e6
        verdict, right = "no record", False
        if works:
            mean_ms = works[0]["mean_ns"] / 1e6
            verdict = "%d records, mean %.3f ms (%.3f to %.3f); %d by id, %d near" % (
                works[0]["count"], mean_ms, works[0]["min_ns"] / 1e6, works[0]["max_ns"] / 1e6,
                board["matched_exact"], board["matched_near"])
            right = (works[0]["count"] == done["kernels"] - 1 and
                     asked_ms * 0.98 <= mean_ms <= asked_ms + WORK_MS_SLACK)
        rows.append(row(name + ", times", "%d kernels of %g ms" % (done["kernels"] - 1, asked_ms),
                        verdict, right, **common))
    if ended != 0:
        rows[0]["right"] = False
        rows[0]["verdict"] += "; the program ended with %s" % ended
    return rows


# ---- two ranks --------------------------------------------------------------------------


def start_ranks(lab, name, mode, level, arguments, culprit_arguments=()):
    """The processes, and functions that read what each says of the truth."""
    ranks, truths = [], []
    id_file = lab.path(name + ".id")
    for old in (id_file, id_file + ".part"):
        if os.path.exists(old):
            os.unlink(old)
    for rank in range(RANKS):
        truth = lab.path("%s.rank%d.truth" % (name, rank))
        if os.path.exists(truth):
            os.unlink(truth)
        env = {
            # Ranks with the same host id would be refused on one GPU, or meet without a network.
            "NCCL_HOSTID": "mycroft-gpu-test-%d" % rank,
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # from NCCL 2.30 on
            "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "2",
            # Clocks are bound by data only where the host sees it before the GPU does.
            "NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring",
            "NCCL_RAS_ENABLE": "0", "NCCL_DEBUG": "WARN",
        }
        if mode != "off":
            env["NCCL_PROFILER_PLUGIN"] = os.path.join(lab.a.build, "lib",
                                                       "libnccl-profiler-mycroft.so")
            env["MYCROFT_LEVEL"] = level
        if mode == "plugin + CUPTI":
            env["CUDA_INJECTION64_PATH"] = os.path.join(lab.a.build, "lib", "libmycroft-cupti.so")
        command = [os.path.join(lab.a.build, "gpu", "ranks"), "--rank", str(rank), "--ranks",
                   str(RANKS), "--id", id_file, "--truth", truth, "--nccl", lab.a.nccl, *arguments]
        if rank == CULPRIT:
            command += culprit_arguments
        ranks.append(lab.start("%s.rank%d" % (name, rank), command, env))
        truths.append(lambda truth=truth: events(truth))
    return ranks, truths


def sleep_beside(lab, seconds, children):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if lab.left() < 2:
            raise Out()
        for child in children:
            if child.poll() is not None:
                raise Wrong("%s ended: %s" % (child.log, lab.last_words(child)))
        time.sleep(0.02)


def clock_bound(lab, recording):
    """The worst of the ranks' GPU clocks, as an export prints them."""
    exported = lab.tool([lab.mycroft, "export", recording, "--format", "chrome", "-o", "-"])
    texts = re.findall(r'"(GPU clock of rank \d+ [^"]*?\): [^"]*)"', exported)
    bounds, problems = [], []
    for text in texts:
        said = text.split("): ", 1)[1]
        match = re.match(r"\u00b1([\d.]+) (ns|us|ms|s)\b", said)
        if match:
            unit = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[match.group(2)]
            bounds.append((float(match.group(1)) * unit, match.group(0)))
        else:
            problems.append(said)
    if problems or len(texts) < RANKS:
        return "unknown", texts
    return max(bounds)[1], texts


def named(incidents):
    return {(c["rank"], c["component"]) for i in incidents for c in i["culprits"]}


def describe(incident):
    culprits = ["rank %d %s %.0f %%" % (c["rank"], "/".join(c.get("candidates", [])) or
                                        c["component"], c["confidence"] * 100)
                for c in incident["culprits"]]
    return "%s: %s" % (incident["kind"], ", ".join(culprits) or "nobody named")


def judge(name, incidents, fault_ns):
    """Why this is not right; empty: it is."""
    component, kinds = CASES[name]
    if component is None:
        return ["false alarm"] if incidents else []
    if not incidents:
        return ["nothing was found"]
    why = []
    if any(incident["detected_ns"] < fault_ns for incident in incidents):
        why.append("false alarm before the fault")
    if named(incidents) != {(CULPRIT, component)}:
        why.append("wrong culprit" if named(incidents) else "nobody named")
    if incidents[0]["kind"] not in kinds:
        why.append("wrong kind")
    return why


def run_case(lab, name):
    fault = name if name in ("late", "slow", "blocked") else None
    culprit = ["--fault", fault, "--at", str(HEALTHY_S), "--for", str(FAULT_S)] if fault else []
    ranks, truths = start_ranks(lab, name, "plugin + CUPTI", lab.a.level,
                                ["--most-seconds", "90"], culprit)
    recording = lab.path(name + ".mycroft")
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(recording + suffix):
            os.unlink(recording + suffix)
    record = lab.start(name + ".record", [lab.mycroft, "record", "--json", "-o", recording] +
                       lab.probes + [word for rank in ranks for word in ("-p", str(rank.pid))])
    everybody = ranks + [record]
    for rank in range(RANKS):
        lab.wait_for("first step of rank %d" % rank, lambda r=rank: "ready" in truths[r](), 40,
                     everybody)
    lab.versions.update(truths[0]()["ready"])
    extra, fault_ns = {}, 0
    if name == "healthy":
        sleep_beside(lab, HEALTHY_S + AFTER_S, everybody)
        try:
            extra["doctor"] = lab.mycroft_json("doctor", "--json")
        except Wrong as e:
            extra["doctor"] = str(e)
    elif name == "stopped":
        sleep_beside(lab, HEALTHY_S, everybody)
        fault_ns = now_ns()
        os.kill(ranks[CULPRIT].pid, signal.SIGSTOP)
        sleep_beside(lab, FAULT_S, everybody)
        os.kill(ranks[CULPRIT].pid, signal.SIGCONT)
    else:
        said = lab.wait_for("fault", lambda: truths[CULPRIT]().get("fault"), HEALTHY_S + 10,
                            everybody)
        fault_ns = said["t_ns"]
        lab.wait_for("end of the fault", lambda: "fault_end" in truths[CULPRIT](), FAULT_S + 10,
                     everybody)
    sleep_beside(lab, AFTER_S, everybody)
    boards = [lab.board(rank.pid) for rank in ranks]
    # First the recorder: a process that ended takes its counts of losses with it.
    lab.end(record, signal.SIGINT, 10)
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    codes = [lab.end(rank, 0) for rank in ranks]
    done = [truth().get("done") for truth in truths]

    verdict = lab.mycroft_json("diagnose", "--json", recording)
    job = lab.mycroft_json("top", "--once", "--json", recording)["job"]
    lost = sum(n for cause, n in job["lost"].items() if cause != "duplicate_step")
    lost += job["torn_reads"]
    gpu_lost = sum(board_losses(board) + board["torn_reads"] for board in boards)
    clock, clocks = clock_bound(lab, recording)
    save(lab, name + ".verdict.json", verdict)
    save(lab, name + ".boards.json", boards)

    # As the agent said it, live: when it was right first, and what it said before.
    seconds, live = None, []
    with open(lab.path(name + ".record.out"), encoding="utf-8", errors="replace") as f:
        for line in f:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if not said["incident"]["culprits"] or said["event"] == "cleared":
                continue
            live.append(describe(said["incident"]))
            if named([said["incident"]]) == {(CULPRIT, CASES[name][0])}:
                seconds = (said["t_ns"] - fault_ns) / 1e9
                break
    text = "; ".join(describe(i) for i in verdict["incidents"]) or "no incident"
    if live and "; ".join(live) != text:
        text = "live %s; in the end %s" % (", then ".join(live), text)
    why = judge(name, verdict["incidents"], fault_ns)
    if not why and seconds is None and CASES[name][0]:
        why.append("not said while it lasted")
    if codes != [0] * RANKS or None in done:
        why.append("ranks ended with %s: %s" % (codes, lab.last_words(ranks[CULPRIT])))
    elif any(d["wrong"] for d in done):
        why.append("the sums were wrong")
    for board in boards:
        if board["problem"]:
            why.append("the GPU board says: " + board["problem"])
            break
    return [row(name, TRUTH[name], with_reasons(text, why), not why, seconds=seconds,
                lost="%d + %d" % (lost, gpu_lost), clock=clock, clocks=clocks, steps=done,
                incidents=verdict["incidents"], blind_spots=verdict["blind_spots"], **extra)]


# ---- slowdown ---------------------------------------------------------------------------


def measure(lab, mode, number):
    """Median step of rank 0, in ms: 20 short kernels and an AllReduce of 1 MiB."""
    name = "speed.%s.%d" % (mode.replace(" ", ""), number)
    ranks, truths = start_ranks(lab, name, mode, "steps", [
        "--compute-ms", "0.4", "--kernels", "20", "--floats", "262144", "--seconds",
        str(MEASURE_S), "--most-seconds", "40"])
    done = lab.wait_for("end of " + name, lambda: truths[0]().get("done"), 40, ranks[:1])
    codes = [lab.end(rank, 0) for rank in ranks]
    if codes != [0] * RANKS or done["wrong"] or not done["measured"]:
        raise Wrong("%s: ranks ended with %s: %s" % (name, codes, lab.last_words(ranks[0])))
    return done["median_ns"] / 1e6


def run_slowdown(lab, result):
    """Rounds of all modes in turn, so that a drift of the machine meets all of them alike."""
    slowdown = {"rounds": [], "step": "20 kernels, AllReduce of 1 MiB, level steps, no agent",
                "right": False, "problem": ""}
    result["slowdown"] = slowdown
    took = 0.0
    try:
        for number in range(lab.a.rounds):
            if lab.left() < took * 1.2:
                raise Out()
            begin = time.monotonic()
            slowdown["rounds"].append({mode: measure(lab, mode, number) for mode in MODES})
            took = time.monotonic() - begin
    except Wrong as e:
        slowdown["problem"] = str(e)
    except Out:
        slowdown["problem"] = "%d of %d rounds: no time is left" % (len(slowdown["rounds"]),
                                                                    lab.a.rounds)
    lab.kill_all()
    slowdown["right"] = len(slowdown["rounds"]) >= lab.a.rounds
    slowdown["modes"] = []
    for mode in MODES if slowdown["rounds"] else ():
        steps = [r[mode] for r in slowdown["rounds"]]
        ratios = [r[mode] / r["off"] for r in slowdown["rounds"]]
        slowdown["modes"].append({
            "mode": mode, "step_ms": statistics.median(steps), "step_ms_min": min(steps),
            "step_ms_max": max(steps), "ratio": statistics.median(ratios),
            "ratio_min": min(ratios), "ratio_max": max(ratios)})


# ---- tables -----------------------------------------------------------------------------


def table(head, lines):
    widths = [max(len(line[i]) for line in [head] + lines) for i in range(len(head))]
    for line in [head, ["-" * w for w in widths]] + lines:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip())


def show(result):
    machine = result["machine"]
    print("\n%s  %s\ndriver %s, CUDA %s (driver's %s), NCCL %s; Linux %s, %s\n"
          "level %s; probes: %s\n" % (
        result["date"], machine["gpu"], machine["driver"], machine["cuda"], machine["driver_cuda"],
        machine["nccl"], machine["kernel"], "root" if machine["root"] else "not root",
        result["level"], machine["probes"]))
    if result["rows"]:
        table(["case", "truth", "right", "seconds", "lost", "clock", "verdict"],
              [[r["case"], r["truth"], "yes" if r["right"] else "NO",
                "-" if r["seconds"] is None else "%.2f" % r["seconds"],
                "-" if r["lost"] is None else str(r["lost"]), r["clock"] or "-", r["verdict"]]
               for r in result["rows"]])
    slowdown = result.get("slowdown")
    if slowdown:
        print("\nslowdown; one step: %s; %d rounds%s" % (
            slowdown["step"], len(slowdown["rounds"]),
            "; " + slowdown["problem"] if slowdown["problem"] else ""))
        if slowdown["modes"]:
            table(["mode", "step ms", "min to max", "ratio to off", "min to max"],
                  [[m["mode"], "%.3f" % m["step_ms"],
                    "%.3f to %.3f" % (m["step_ms_min"], m["step_ms_max"]), "%.4f" % m["ratio"],
                    "%.4f to %.4f" % (m["ratio_min"], m["ratio_max"])]
                   for m in slowdown["modes"]])
    print("\n%s; %.0f s" % ("all right" if result["right"] else "NOT all right",
                            result["took_s"]))


def save(lab, name, value):
    with open(lab.path(name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)


def cuda_version(code):
    return "%d.%d" % (code // 1000, code % 1000 // 10) if code else "?"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--show")
    for name in ("--build", "--nccl", "--gpu", "--work", "--only", "--level", "--json"):
        parser.add_argument(name, default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=240)
    a = parser.parse_args()
    if a.show:
        try:
            with open(a.show, encoding="utf-8") as f:
                show(json.load(f))
        except (OSError, ValueError, KeyError, TypeError) as e:
            print("tests/gpu/run: --show: %s is not a result of this: %r" % (a.show, e),
                  file=sys.stderr)
            return 2
        return 0

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    lab = Lab(a)
    begin = time.monotonic()
    wanted = [name for name in a.only.split(",") if name]
    gpu, driver = (a.gpu.split(", ") + ["?", "?"])[:2]
    date = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    result = {"schema_version": 1, "date": date, "level": a.level, "rows": []}
    broken = {}
    probes = "not tried"
    try:
        if not wanted or any(name in CASES for name in wanted):
            probes = lab.try_probes()
        for name in ["busy", "busy-records"] + list(CASES):
            if wanted and name not in wanted:
                continue
            busy = name not in CASES
            truth = "" if busy else TRUTH[name]
            print("%3.0f s: %s" % (time.monotonic() - begin, name), flush=True)
            try:
                # Where ranks cannot start at all, they would not in the next case either.
                if broken.get(busy):
                    raise Wrong("not run: " + broken[busy])
                result["rows"] += (run_busy if busy else run_case)(lab, name)
            except Wrong as e:
                result["rows"].append(row(name, truth, str(e)))
                if "first step" in str(e) or "start of CUDA" in str(e):
                    broken[busy] = "nothing started in the case before"
            except Out:
                result["rows"].append(row(name, truth, "not run: no time is left"))
            except (OSError, ValueError, KeyError) as e:
                result["rows"].append(row(name, truth, "failed: %r" % e))
            finally:
                lab.kill_all()
        if not wanted or "slowdown" in wanted:
            print("%3.0f s: slowdown" % (time.monotonic() - begin), flush=True)
            run_slowdown(lab, result)
    finally:
        lab.kill_all()
    version = lab.versions.get("nccl", 0)
    result["machine"] = {
        "gpu": gpu, "driver": driver, "cuda": cuda_version(lab.versions.get("cuda_runtime", 0)),
        "driver_cuda": cuda_version(lab.versions.get("cuda_driver", 0)),
        "nccl": "%d.%d.%d" % (version // 10000, version // 100 % 100, version % 100)
                if version else "?",
        "kernel": platform.release(), "probes": probes, "root": os.geteuid() == 0}
    result["right"] = (all(r["right"] for r in result["rows"]) and
                       result.get("slowdown", {"right": True})["right"])
    result["took_s"] = time.monotonic() - begin
    show(result)
    with open(a.json, "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
    return 0 if result["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
