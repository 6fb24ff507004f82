/* gpurun: chooses the command, and what each rank does for it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/model.h"
#include "tools/cli/outputs.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"
#include "tools/cli/together.h"
#include "tools/commands/bench.h"
#include "tools/commands/commands.h"
#include "tools/commands/complete.h"
#include "tools/commands/session.h"
#include "tools/download/download.h"

static int (*const functions[GR_N_COMMANDS])(const struct gr_options *o) = {
#define COMMAND(name, fn, ...) fn,
#define ABSENT(name, answer)
#include "tools/cli/commands.def"
#undef COMMAND
#undef ABSENT
};

static const struct gr_command_spec *find_command(const char *name)
{
    if (!strcmp(name, "server"))
        name = "serve";
    for (const struct gr_command_spec *c = gr_commands; c->name; c++) {
        if (!strcmp(c->name, name))
            return c;
    }
    return NULL;
}

/* Returns whether a first word that is not a command can be the model file. */
static bool is_path(const char *word)
{
    return strpbrk(word, "./") || !access(word, F_OK);
}

/* Returns the command of argv[1], or run when there is none. NULL: refused with a message. *skip:
 * words of argv to skip. */
static const struct gr_command_spec *choose(int argc, char **argv, int *skip)
{
    const char *word = argc > 1 ? argv[1] : "-";
    const struct gr_command_spec *c = find_command(word), *run = &gr_commands[GR_CMD_run];
    *skip = c ? 2 : 1;
    if (c && !c->args)
        gr_say_error("%s: %s", word, c->text);
    if (c)
        return c->args ? c : NULL;
    if (!*word || *word == '-' || is_path(word))
        return run;
    const char *near = gr_nearest_name(GR_CMD_run, word);
    if (near)
        gr_say_error("unknown command '%s': did you mean gpurun %s?", word, near);
    else
        gr_say_error("unknown command '%s'; gpurun -p \"...\" continues a text, gpurun help lists "
                     "the commands",
                     word);
    return NULL;
}

/* Opens the model that rank 0 opens, and serves it. */
static int serve(struct gr_world *world, const struct gr_options *o)
{
    struct gr_model *model = NULL;
    int rc = gr_open_model(o, false, &model);
    int status = rc ? 0 : gr_world_serve(world, model);
    if (status) /* before closing the model logs anything */
        rc = gr_say_status(status);
    gr_model_close(&model);
    return rc;
}

/* Ranks > 0: serves the model of rank 0's command. */
static int serve_command(struct gr_world *world, const struct gr_options *o)
{
    struct gr_options with_model = *o;
    struct gr_recording recording = {0};
    int rc = 0;
    if (o->command == GR_CMD_bench)
        gr_bench_set_model(&with_model, 0);
    if (o->command == GR_CMD_replay && !o->model) {
        rc = gr_recording_read(&recording, o->arg[0]);
        with_model.model = recording.model;
    }
    if (!rc)
        rc = serve(world, &with_model);
    gr_recording_fini(&recording);
    return rc;
}

/* Rank 0, or the only process. */
static int lead_command(struct gr_world *world, const struct gr_options *o)
{
    if (world)
        gr_say("ranks: %d processes", gr_world_size(world));
    int rc = functions[o->command](o);
    if (!rc)
        gr_warn_unread(o);
    return rc;
}

/* Runs the command with its model's file, which is downloaded before where the flags say so. */
static int run_with_model(struct gr_world *world, const struct gr_options *o)
{
    struct gr_options own = *o;
    char *path = NULL;
    bool fetches = o->command != GR_CMD_pull && o->command != GR_CMD_profile;
    int rc = fetches ? gr_download_model(o, &path) : 0;
    if (path && o->command == GR_CMD_bench)
        own.models = (struct gr_file_list){.v = {path}, .n = 1};
    if (path)
        own.model = path;
    if (!rc)
        rc = !world || gr_world_rank(world) == 0 ? lead_command(world, &own)
                                                 : serve_command(world, &own);
    free(path);
    return rc;
}

static int run_command(const struct gr_options *o)
{
    if (!gr_together_share(gr_commands[o->command].shared && !o->version && !o->help &&
                           !o->list_devices))
        return 0;
    if (o->version)
        return gr_tool_version(o);
    if (o->help)
        return gr_tool_help(o);
    if (o->list_devices)
        return gr_tool_devices(o);
    struct gr_world *world = gr_together_world();
    bool leads = !world || gr_world_rank(world) == 0;
    int rc = leads ? gr_outputs_check(o) : 0;
    if (!rc)
        rc = gr_say_init(o);
    if (!rc) {
        gr_bar_init(o);
        gr_options_warn(o);
        rc = run_with_model(world, o);
    }
    gr_bar_end();
    int lost = gr_say_fini();
    return rc ? rc : lost;
}

/* SIGBUS in a mapped model file: the file was truncated or its disk failed; any other SIGBUS ends
 * the program as without a handler. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    static const char line[] =
        "gpurun: error: the model file was cut off, or its disk failed, while it was in use; "
        "--no-mmap reads all of it at the start\n";
    (void)context;
    if (info->si_code > 0 && gr_in_model_file(info->si_addr)) {
        gr_say_erase();
        (void)!write(STDERR_FILENO, line, sizeof line - 1);
        _exit(3);
    }
    signal(number, SIG_DFL);
    raise(number);
}

static int run_line(int argc, char **argv)
{
    struct gr_options o;
    int skip;
    const struct gr_command_spec *c = choose(argc, argv, &skip);
    if (!c)
        return GR_EXIT_USAGE;
    if (c == &gr_commands[GR_CMD_completion] && argc > 2 && !strcmp(argv[2], "words"))
        return gr_complete_words(argc - 3, argv + 3);
    if (c == &gr_commands[GR_CMD_run] && argc > skip &&
        gr_options_are_chat(argc - skip, argv + skip))
        c = &gr_commands[GR_CMD_chat];
    int rc = gr_options_parse(&o, (enum gr_command)(c - gr_commands), argc > skip ? argc - skip : 0,
                              argv + skip);
    o.words = argv + skip, o.n_words = argc > skip ? argc - skip : 0;
    if (!rc)
        rc = run_command(&o);
    gr_options_fini(&o);
    gr_out_finish();
    return gr_out_ended() ? 0 : rc;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO},
              NULL);
    int rc = gr_together_open();
    return gr_together_close(rc ? rc : run_line(argc, argv));
}
