// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "tools/mycroft/exit_codes.h"
#include "userspace/base/log.h"
#include "userspace/base/text.h"
#include "userspace/base/units.h"

namespace mycroft {
namespace {

const CLI::Validator& DurationCheck() {
  static const CLI::Validator check(
      [](std::string& text) {
        const absl::StatusOr<uint64_t> value = ParseDuration(text);
        return value.ok() ? std::string() : StatusText(value.status());
      },
      "", "duration");
  return check;
}

const CLI::Validator& BytesCheck() {
  static const CLI::Validator check(
      [](std::string& text) {
        const absl::StatusOr<uint64_t> value = ParseBytes(text);
        return value.ok() ? std::string() : StatusText(value.status());
      },
      "", "bytes");
  return check;
}

// A flag that sets a configuration key; its value is checked when it is set.
void AddConfigFlag(CLI::App* app, Options& options, const std::string& flag, const std::string& key,
                   const std::string& help) {
  std::string value;
  for (const ConfigKey& known : ConfigKeys()) {
    if (known.name == key) value = known.value;
  }
  const std::string name = flag.substr(flag.rfind("--"));
  app->add_option_function<std::string>(
         flag,
         [&options, key, name](const std::string& text) {
           options.overrides[key] = {name, text};
         },
         help)
      ->type_name(value);
}

void AddPids(CLI::App* app, Options& options) {
  app->add_option("-p,--pid", options.pids,
                  "only this process and its descendants; may be given again")
      ->type_name("PID")
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, 4194304u));
}

void AddSampling(CLI::App* app, Options& options) {
  AddPids(app, options);
  AddConfigFlag(app, options, "--interval", "interval", "sampling interval, 10ms to 1s");
  AddConfigFlag(app, options, "--level", "level",
                "detail asked of the plugins: ops, steps (adds flows and wait states) or kernels "
                "(adds GPU timers)");
  AddConfigFlag(app, options, "--stuck-after", "detect.stuck_after",
                "no progress for at least this long is stuck");
  AddConfigFlag(app, options, "--slow-factor", "detect.slow_factor",
                "this many times the baseline is slow");
  app->add_flag_callback(
      "--no-probes", [&options] { options.overrides["probes"] = {"--no-probes", "false"}; },
      "do not attach the eBPF probes (queue pairs, thread delays, PCIe errors; 'mycroft doctor' "
      "lists them)");
  app->add_flag("--strict", options.strict, "exit code 1 when a probe cannot be attached");
}

void AddJson(CLI::App* app, Options& options, const std::string& help) {
  app->add_flag("--json", options.json, help);
}

std::string ExamplesText(const VerbDoc& doc) {
  if (doc.examples.empty()) return "";
  std::string text = "Examples:\n";
  for (const auto& [command, what] : doc.examples) {
    text += "  " + command + "\n      " + what + "\n";
  }
  return text;
}

}  // namespace

const std::vector<std::pair<int, std::string>>& ExitCodeDocs() {
  static const std::vector<std::pair<int, std::string>> docs = {
      {kExitOk, "fine; nothing is or was stuck"},
      {kExitFailure, "failure at run time"},
      {kExitUsage, "wrong usage or configuration"},
      {kExitStall, "an incident was found: something is or was stuck, slow, absent or dead"},
      {kExitDegraded, "no incident, but not everything could be seen"},
      {kExitNothing, "nothing to observe: no process with the plugin"},
  };
  return docs;
}

const std::vector<VerbDoc>& VerbDocs() {
  static const std::vector<VerbDoc> docs = {
      {"run",
       "start a job with Mycroft's NCCL profiler plugin",
       "Sets NCCL_PROFILER_PLUGIN to the plugin next to this command, and CUDA_INJECTION64_PATH "
       "to the CUPTI agent when it is installed, then becomes COMMAND. Nothing else is changed, "
       "nothing stays behind. When NCCL_PROFILER_PLUGIN is set already, the command is not "
       "started (exit code 2), unless --chain makes Mycroft's plugin load the other one behind "
       "it: NCCL itself loads only one.",
       {{"mycroft run -- torchrun --nproc-per-node 8 train.py", "on one node"},
        {"srun mycroft run -- python train.py", "on every node of a Slurm job"},
        {"NCCL_PROFILER_PLUGIN=/opt/inspector.so mycroft run --chain -- ./job",
         "together with another profiler plugin"}}},
      {"doctor",
       "check what Mycroft can see on this host, and what is lost",
       "One line per requirement: [ok], [warn] or [FAIL], what is lost by it, and what to do. "
       "For running processes that use NCCL without the plugin it prints the two lines of "
       "environment to start them with. Below are the probes, each with what it is attached to "
       "and what it costs, or why not and what is lost, and the GPUs and RDMA devices of the "
       "running jobs: the way to the root, its narrowest hop, the state of the ports. Exit code "
       "0: all fine, 4: something is lost or wrong (1 with --strict).",
       {{"mycroft doctor", "look at this host"},
        {"mycroft doctor --json", "for machines"},
        {"mycroft doctor --strict", "in a health check: anything lost fails"}}},
      {"record",
       "watch the jobs of this host and write a recording",
       "Samples the boards of all processes that have the plugin, writes what has changed to a "
       "recording, and says on standard error when an incident opens, changes its verdict or "
       "clears. SIGINT and SIGTERM end it cleanly; even SIGKILL loses one second at most. With "
       "--listen it serves Prometheus metrics.",
       {{"mycroft record -o job.mycroft", "until Ctrl-C"},
        {"mycroft record -d 10m --json", "ten minutes, incidents as JSON lines"},
        {"mycroft record --listen 127.0.0.1:19470 --append -o /var/lib/mycroft/node.mycroft",
         "as a service, with metrics on http://127.0.0.1:19470/metrics"}}},
      {"top",
       "live view of the jobs of this host, or of a recording",
       "The first line says whether anything is stuck, since when, and whose fault it is. Below "
       "are incidents, communicators and ranks; Enter opens the evidence of an incident or the "
       "flows of a rank, h shows all keys. A recording has a time cursor: [ and ] move it by one "
       "second, { and } by ten, space plays. Without a terminal, or with --once, one frame is "
       "printed as text.",
       {{"mycroft top", "what is going on now"},
        {"mycroft top job.mycroft", "walk through a recording"},
        {"mycroft top --once --json", "one frame for machines"}}},
      {"diagnose",
       "print the verdict: who holds up whom, and why",
       "For each incident: component, place, since when, confidence, the chain of waiting, the "
       "evidence, and the suspects that were rejected with the reason. Without FILE the live "
       "jobs are watched until an incident has a verdict, for --duration at most. The same "
       "recording always gives the same verdict.",
       {{"mycroft diagnose", "the jobs of this host, now"},
        {"mycroft diagnose job.mycroft", "a recording"},
        {"mycroft diagnose --json -p 4711", "one process and its descendants, for machines"}}},
      {"export",
       "write the timeline of a recording",
       "Formats: perfetto (protobuf, for ui.perfetto.dev), chrome (JSON, for chrome://tracing), "
       "folded (stacks for flame graphs), speedscope (JSON, for speedscope.app), html (one file "
       "that needs no network). Times are nanoseconds of the recording's clock, a duration from "
       "its start (10s), or a negative duration from its end (-10s).",
       {{"mycroft export job.mycroft --format perfetto -o job.pftrace", "everything"},
        {"mycroft export job.mycroft --format html --since -30s -o end.html",
         "the last 30 seconds"},
        {"mycroft export job.mycroft --format folded -o - | flamegraph.pl", "to a pipe"}}},
      {"merge",
       "put the recordings of several nodes into one",
       "Snapshots are put in order of the wall clock and keep their host, so that the verdict "
       "spans the nodes. Recordings of one host may follow each other but not overlap.",
       {{"mycroft merge node0.mycroft node1.mycroft -o job.mycroft", "two nodes"}}},
      {"version",
       "print the version, and the versions of what Mycroft works with",
       "The version and revision of the command, the kernel, whether it has BTF, and the "
       "versions of NCCL, CUPTI and NVML found on this host.",
       {{"mycroft version --json", "for a bug report"}}},
      {"completion",
       "print a completion script for a shell",
       "Prints the script to standard output.",
       {{"source <(mycroft completion bash)", "in ~/.bashrc"},
        {"mycroft completion zsh > ~/.zfunc/_mycroft", "for zsh, with ~/.zfunc in fpath"},
        {"mycroft completion fish > ~/.config/fish/completions/mycroft.fish", "for fish"}}},
      {"__man", "write the manual pages into a folder", "", {}, true},
  };
  return docs;
}

std::unique_ptr<CLI::App> MakeApp(Options& options) {
  auto app = std::make_unique<CLI::App>(
      "Tells, while a distributed training job is stuck or slow, whom everybody waits for",
      "mycroft");
  app->require_subcommand(0, 1);
  app->set_help_flag("-h,--help", "print this help and exit");
  app->add_flag_callback(
      "--version", [&options] { options.verb = "version"; },
      "print the versions of Mycroft and of what it works with");
  app->add_option("--config", options.config_file,
                  "configuration file in place of " + std::string(kSystemConfigPath))
      ->type_name("FILE");
  app->add_flag("--print-config", options.print_config,
                "print the configuration in effect and where each value comes from, and exit");
  app->add_flag("-q,--quiet", options.quiet, "only errors and warnings");
  app->add_flag("-v,--verbose", options.verbose, "more about what is done");

  std::map<std::string, CLI::App*> verbs;
  for (const VerbDoc& doc : VerbDocs()) {
    CLI::App* verb = app->add_subcommand(doc.name, doc.summary);
    verb->fallthrough();
    verb->footer(ExamplesText(doc));
    if (doc.hidden) verb->group("");
    verb->callback([&options, name = doc.name] { options.verb = name; });
    verbs[doc.name] = verb;
  }

  CLI::App* run = verbs["run"];
  // For the help text: ParseCommandLine takes the command off before the parser sees it.
  run->add_option("COMMAND", options.command, "the job's command and its arguments")->expected(-1);
  run->add_flag("--chain", options.chain,
                "let Mycroft's plugin load the one that NCCL_PROFILER_PLUGIN names already");
  AddConfigFlag(run, options, "--plugin", "plugin",
                "libnccl-profiler-mycroft.so, when it is not next to this command");
  AddConfigFlag(run, options, "--level", "level",
                "detail from the start (MYCROFT_LEVEL of the job): ops, steps or kernels");

  CLI::App* doctor = verbs["doctor"];
  AddJson(doctor, options, "print JSON");
  doctor->add_flag("--strict", options.strict, "exit code 1 when anything is lost");
  AddConfigFlag(doctor, options, "--plugin", "plugin",
                "libnccl-profiler-mycroft.so, when it is not next to this command");

  CLI::App* record = verbs["record"];
  record
      ->add_option("-o,--output", options.output,
                   "the recording; default: mycroft-HOST-TIME.mycroft in this folder")
      ->type_name("FILE");
  record->add_flag("--append", options.append, "go on with a recording that is there");
  record->add_option("-d,--duration", options.duration, "stop after this time")
      ->type_name("DURATION")
      ->check(DurationCheck());
  AddSampling(record, options);
  AddConfigFlag(record, options, "--max-size", "record.max_size",
                "drop the oldest part of a larger recording; 0: keep all");
  AddConfigFlag(record, options, "--max-age", "record.max_age",
                "drop parts older than this; 0: keep all");
  AddConfigFlag(record, options, "--listen", "metrics.listen",
                "serve Prometheus metrics there; usually 127.0.0.1:19470");
  record->add_flag_callback(
      "--listen-public",
      [&options] {
        options.overrides["metrics.listen_public"] = {"--listen-public", "true"};
      },
      "allow --listen on an address that is not loopback: there is no password");
  AddJson(record, options, "incidents as JSON lines on standard output");

  CLI::App* top = verbs["top"];
  top->add_option("FILE", options.file, "a recording; default: the live jobs of this host");
  top->add_flag("-1,--once", options.once, "print one frame as text and exit");
  AddJson(top, options, "with --once: the job and the verdicts as JSON");
  top->add_option(
         "--wait", options.wait,
         "with --once, live: how long to look first; default: three intervals, at least 1s")
      ->type_name("DURATION")
      ->check(DurationCheck());
  AddSampling(top, options);
  AddConfigFlag(top, options, "--refresh", "top.refresh", "how often the screen is drawn");
  AddConfigFlag(top, options, "--sort", "top.sort", "order of the ranks");
  top->add_flag("--no-color", options.no_color, "no colours; NO_COLOR in the environment, too");
  top->add_flag_callback(
      "--ascii,--no-unicode",
      [&options] {
        options.overrides["top.ascii"] = {"--ascii", "true"};
      },
      "ASCII characters only");

  CLI::App* diagnose = verbs["diagnose"];
  diagnose->add_option("FILE", options.file, "a recording; default: the live jobs of this host");
  AddJson(diagnose, options, "print JSON");
  diagnose
      ->add_option("-d,--duration", options.duration,
                   "live: how long to watch when nothing is found; default 5s")
      ->type_name("DURATION")
      ->check(DurationCheck());
  AddSampling(diagnose, options);
  diagnose->add_flag("--no-color", options.no_color, "no colours; NO_COLOR, too");

  CLI::App* exporter = verbs["export"];
  exporter->add_option("FILE", options.file, "a recording")->required();
  exporter->add_option("-f,--format", options.format, "format of the timeline")
      ->required()
      ->type_name("perfetto|chrome|folded|speedscope|html")
      ->check(
          CLI::IsMember({"perfetto", "chrome", "folded", "speedscope", "html"}).description(""));
  exporter->add_option("-o,--output", options.output, "where to write; - is standard output")
      ->required()
      ->type_name("FILE");
  exporter->add_option("--since", options.since, "from this time on")->type_name("TIME");
  exporter->add_option("--until", options.until, "up to this time")->type_name("TIME");
  exporter->add_option("--max-bytes", options.max_bytes, "end cleanly before the file grows larger")
      ->type_name("SIZE")
      ->check(BytesCheck());

  CLI::App* merge = verbs["merge"];
  merge->add_option("INPUT", options.inputs, "recordings")->required()->expected(2, 100000);
  merge->add_option("-o,--output", options.output, "the recording to make")
      ->required()
      ->type_name("FILE");

  AddJson(verbs["version"], options, "print JSON");

  verbs["completion"]
      ->add_option("SHELL", options.shell, "bash, zsh or fish")
      ->required()
      ->type_name("bash|zsh|fish")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}).description(""));
  verbs["__man"]->add_option("FOLDER", options.man_directory)->required();

  std::string exits = "Exit codes:\n";
  for (const auto& [code, what] : ExitCodeDocs()) {
    exits += "  " + std::to_string(code) + "  " + what + "\n";
  }
  app->footer(exits + "\nTry: mycroft run -- COMMAND, then mycroft top. More: mycroft VERB --help");
  return app;
}

void ParseCommandLine(CLI::App& app, Options& options, int argc, const char* const* argv,
                      std::optional<int>& exit_code) {
  std::vector<std::string> arguments;
  bool verb_seen = false, in_run = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool flag = argument.size() > 1 && argument[0] == '-';
    if (in_run && (argument == "--" || !flag)) {
      // Here the job's own command line begins; its options are not ours.
      for (i += argument == "--" ? 1 : 0; i < argc; ++i) options.command.push_back(argv[i]);
      break;
    }
    if (!flag && !verb_seen) {
      verb_seen = true;
      in_run = argument == "run";
    }
    const bool takes_value =
        in_run ? argument == "--plugin" || argument == "--level" || argument == "--config"
               : argument == "--config" && !verb_seen;
    const bool time = argument == "--since" || argument == "--until";
    if (time && i + 1 < argc && argv[i + 1][0] == '-') {
      // "--since -10s": the parser would take -10s for an option.
      arguments.push_back(argument + "=" + argv[++i]);
      continue;
    }
    arguments.push_back(argument);
    if (takes_value && i + 1 < argc) arguments.push_back(argv[++i]);
  }
  std::reverse(arguments.begin(), arguments.end());  // as the parser wants them
  try {
    app.parse(arguments);
  } catch (const CLI::Success& e) {
    exit_code = app.exit(e) == 0 ? kExitOk : kExitFailure;
    return;
  } catch (const CLI::ParseError& e) {
    std::string where = "mycroft";
    for (const CLI::App* verb : app.get_subcommands()) where += " " + verb->get_name();
    std::string text = e.what();
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    if (dynamic_cast<const CLI::ExtrasError*>(&e) != nullptr && app.get_subcommands().empty() &&
        !arguments.empty()) {
      std::vector<std::string> names;
      for (const VerbDoc& doc : VerbDocs()) {
        if (!doc.hidden) names.push_back(doc.name);
      }
      const std::string wrong = arguments.back();
      const std::string closest = ClosestName(wrong, names);
      text = QuotedText(wrong) + " is not a verb or an option" +
             (closest.empty() ? "" : ", did you mean '" + closest + "'?") +
             " Verbs: " + JoinNames(names);
    }
    LogError(text + "; see '" + where + " --help'");
    exit_code = kExitUsage;
    return;
  }
  if (options.quiet && options.verbose) {
    LogError("-q and -v exclude each other");
    exit_code = kExitUsage;
  } else if (options.verb.empty() && !options.print_config) {
    LogError("no verb given; see 'mycroft --help'");
    exit_code = kExitUsage;
  } else if (options.verb == "run" && options.command.empty() && !options.print_config) {
    LogError("run: no command given; write: mycroft run -- COMMAND");
    exit_code = kExitUsage;
  }
}

absl::StatusOr<Config> MakeConfig(const Options& options, const GetEnv& getenv) {
  Config config;
  absl::Status status = LoadConfig(config, options.config_file, getenv);
  if (!status.ok()) return status;
  for (const auto& [key, flag] : options.overrides) {
    status = SetConfig(config, key, flag.second, flag.first);
    if (!status.ok()) return status;
  }
  if (options.no_color) config.top_colour = ColourMode::kNever;
  return config;
}

}  // namespace mycroft
