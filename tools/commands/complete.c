/* Completion of command lines. The candidates come from the tables of commands, flags and recipes,
 * the same for every shell: the shells' scripts call `gpurun completion words` with the words after
 * the program's name up to the one being typed. A line of the answer is a word, then after a tab
 * its description; or :gguf, :files, :folders, for which the shell completes file names. */
#include "complete.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "help.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

/* The word being typed: `word` is completed and appended to `kept`. */
struct typed {
    const char *word;
    const char *kept;
    int n_kept;
};

/* ---- words ---- */

/* Flags differ by case, other words do not. */
static void offer(const struct typed *t, const char *name, size_t n, const char *about)
{
    size_t n_word = strlen(t->word);
    bool exact = *name == '-';
    if (n < n_word || (exact ? strncmp : strncasecmp)(name, t->word, n_word) != 0)
        return;
    printf("%.*s%.*s", t->n_kept, t->kept, (int)n, name);
    if (*about)
        printf("\t%.*s", (int)strcspn(about, ";\n"), about);
    putchar('\n');
}

static void offer_word(const struct typed *t, const char *name, const char *about)
{
    offer(t, name, strlen(name), about);
}

static void offer_known(const struct typed *t, enum gr_supported kind)
{
    char about[128];
    const char *name;
    for (int32_t i = 0; (name = gr_supported(kind, i, about, sizeof about)); i++)
        offer_word(t, name, about);
}

static void offer_commands(const struct typed *t)
{
    for (int i = 0; i < GR_N_COMMANDS; i++)
        offer_word(t, gr_commands[i].name, gr_commands[i].text);
}

/* Names of the flags of a command (GR_N_COMMANDS: of all). */
static void offer_flags(const struct typed *t, enum gr_command command)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *name;
        size_t n;
        bool off = false;
        if (f->kind >= GR_FLAG_NOOP || (command != GR_N_COMMANDS && !(f->commands & 1u << command)))
            continue;
        while (gr_flag_next_name(&at, &name, &n, &off))
            offer(t, name, n, f->help);
    }
}

static void offer_topics(const struct typed *t)
{
    const char *name;
    for (int i = 0; (name = gr_help_topic(i)); i++)
        offer_word(t, name, "");
}

/* Offers the words of "a|b|N" or "[a | b | TOPIC]"; words in capitals are placeholders. */
static void offer_choices(const struct typed *t, const char *choices)
{
    static const char between[] = " |[]";
    size_t n;
    for (const char *p = choices + strspn(choices, between); *p; p += n + strspn(p + n, between)) {
        n = strcspn(p, between);
        if (!isupper((unsigned char)*p))
            offer(t, p, n, "");
        else if (!strncmp(p, "TOPIC", n))
            offer_topics(t);
        else if (!strncmp(p, "COMMAND", n))
            offer_commands(t);
    }
}

/* ---- where the cursor is ---- */

/* Completes the value of a flag; of a list the part after the last comma. */
static void complete_value(struct typed t, const struct gr_flag *f)
{
    const char *comma = strrchr(t.word, ',');
    if ((f->kind == CHOICES || f->kind == LIST) && comma && !t.n_kept)
        t.kept = t.word, t.n_kept = (int)(comma + 1 - t.word), t.word = comma + 1;
    if (strchr(f->value, '|'))
        offer_choices(&t, f->value);
    else if (f->kind == SWITCH)
        offer_choices(&t, !strcmp(f->def, "auto") ? "on|off|auto" : "on|off");
    else if (!strcmp(f->def, "auto") || !strcmp(f->def, "model"))
        offer_word(&t, f->def, "");
    if (!strcmp(f->def, "auto") && f->hi == INT32_MAX)
        offer_word(&t, "all", "");
    if (!strcmp(f->value, "TYPE"))
        offer_known(&t, GR_SUPPORTED_TYPE);
    else if (!strncmp(f->value, "FILE", 4))
        puts(f->group == MODEL ? ":gguf" : ":files");
    else if (!strcmp(f->value, "DIR"))
        puts(":folders");
}

/* Completes argument k of a command, by its name in the usage line. */
static void complete_argument(const struct typed *t, enum gr_command command, int k)
{
    const char *p = gr_commands[command].args;
    if (k >= gr_commands[command].most)
        return;
    if (strchr(p, '|') && !strstr(p, ".gguf")) {
        offer_choices(t, p);
        return;
    }
    while (k-- > 0) {
        const char *next = p + strcspn(p, " ");
        next += strspn(next, " ");
        if (!strncmp(next, "..", 2)) /* the one before may be repeated */
            break;
        p = next;
    }
    size_t n = strcspn(p, " ");
    if (n == 4 && !memcmp(p, "TYPE", n))
        offer_known(t, GR_SUPPORTED_RECIPE);
    else if (strncmp(p, "[THREADS]", n) != 0)
        puts(memmem(p, n, ".gguf", 5) ? ":gguf" : ":files");
}

static enum gr_command command_of(const char *word)
{
    int i = 0;
    while (i < GR_N_COMMANDS && strcmp(gr_commands[i].name, word) != 0)
        i++;
    return (enum gr_command)i;
}

/* Returns whether the word after a flag (NULL: the one being typed) is its value. */
static bool takes_word(const struct gr_flag *f, const char *next)
{
    if (!f || !*f->value || f->kind >= GR_FLAG_NOOP)
        return false;
    return f->kind != WHEN || !next || strstr(f->value, next);
}

/* Returns how many of the words before the last one are arguments. *pending: the flag whose value
 * the last word is. Shells that split words at "=" pass "--flag", "=", "value". */
static int read_words(char **words, int n, enum gr_command command, const struct gr_flag **pending)
{
    int n_arg = 0;
    bool off;
    *pending = NULL;
    for (int i = 0; i < n; i++) {
        const char *w = words[i];
        const struct gr_flag *f =
            *w == '-' ? gr_flag_find(command, w, strcspn(w, "="), &off) : NULL;
        bool apart = i + 1 < n && !strcmp(words[i + 1], "=");
        const char *next = i + 1 < n ? words[i + 1] : NULL;
        bool takes = (apart || takes_word(f, next)) && !strchr(w, '=');
        n_arg += *w != '-';
        if (takes && i + apart + 1 == n)
            *pending = f;
        i += takes + apart;
    }
    return n_arg;
}

static void complete(char **words, int n, struct typed t)
{
    const struct gr_flag *pending;
    enum gr_command command = n > 0 ? command_of(words[0]) : GR_N_COMMANDS;
    int skip = command != GR_N_COMMANDS;
    command = skip ? command : GR_CMD_run;
    int n_arg = read_words(words + skip, n - skip, command, &pending);
    const char *equals = t.word[0] == '-' && t.word[1] == '-' ? strchr(t.word, '=') : NULL;
    bool off;
    const struct gr_flag *named =
        equals ? gr_flag_find(command, t.word, (size_t)(equals - t.word), &off) : NULL;
    if (pending) {
        complete_value(t, pending);
    } else if (named) {
        struct typed value = {equals + 1, t.word, (int)(equals + 1 - t.word)};
        complete_value(value, named);
    } else if (*t.word == '-') {
        offer_flags(&t, command == GR_CMD_help ? GR_N_COMMANDS : command);
    } else {
        if (n == 0)
            offer_commands(&t);
        complete_argument(&t, command, n_arg);
    }
}

int gr_complete_words(int n, char **words)
{
    const char *word = n > 0 ? words[n - 1] : "";
    bool equals = n > 1 && !strcmp(word, "=");
    complete(words, equals ? n : n > 0 ? n - 1 : 0, (struct typed){equals ? "" : word, "", 0});
    return 0;
}

/* ---- the shells ---- */

static const char bash[] =
    "# gpurun completion for bash: source <(gpurun completion bash)\n"
    "_gpurun() {\n"
    "    local line word=${COMP_WORDS[COMP_CWORD]}\n"
    "    [ \"$word\" = = ] && word=\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r line; do\n"
    "        case $line in\n"
    "        :gguf) mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(\n"
    "            compgen -f -X '!*.gguf' -- \"$word\"; compgen -d -- \"$word\") ;;\n"
    "        :files) mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
    "        :folders) mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -d -- \"$word\") "
    ";;\n"
    "        *) COMPREPLY+=(\"${line%%$'\\t'*}\") ;;\n"
    "        esac\n"
    "    done < <(\"${COMP_WORDS[0]}\" completion words \"${COMP_WORDS[@]:1:COMP_CWORD}\" "
    "2>/dev/null)\n"
    "}\n"
    "complete -o filenames -F _gpurun gpurun\n";

static const char zsh[] =
    "#compdef gpurun\n"
    "# gpurun completion for zsh: gpurun completion zsh > a folder of $fpath, as _gpurun\n"
    "_gpurun() {\n"
    "    local line tab=$'\\t'\n"
    "    local -a names about\n"
    "    for line in ${(f)\"$(${(Q)words[1]} completion words \"${(@Q)words[2,CURRENT]}\" "
    "2>/dev/null)\"}; do\n"
    "        case $line in\n"
    "        :gguf) _files -g '*.gguf' ;;\n"
    "        :files) _files ;;\n"
    "        :folders) _files -/ ;;\n"
    "        *) names+=(\"${line%%$tab*}\") about+=(\"${line/$tab/  -- }\") ;;\n"
    "        esac\n"
    "    done\n"
    "    (( $#names )) && compadd -l -d about -a names\n"
    "}\n"
    "if [[ $funcstack[1] = _gpurun ]]; then _gpurun \"$@\"; else compdef _gpurun gpurun; fi\n";

static const char fish[] =
    "# gpurun completion for fish: gpurun completion fish > "
    "~/.config/fish/completions/gpurun.fish\n"
    "function __gpurun_words\n"
    "    set -l word (commandline -ct)\n"
    "    set -l words (commandline -opc) \"$word\"\n"
    "    for line in ($words[1] completion words $words[2..-1] 2>/dev/null)\n"
    "        switch $line\n"
    "            case :gguf\n"
    "                __fish_complete_suffix .gguf\n"
    "            case :files\n"
    "                __fish_complete_path \"$word\"\n"
    "            case :folders\n"
    "                __fish_complete_directories \"$word\"\n"
    "            case '*'\n"
    "                printf '%s\\n' $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c gpurun -f -a '(__gpurun_words)'\n";

int gr_tool_completion(const struct gr_options *o)
{
    static const struct {
        const char *shell, *script;
    } scripts[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (int i = 0; i < 3; i++)
        if (!strcmp(o->arg[0], scripts[i].shell)) {
            fputs(scripts[i].script, stdout);
            return 0;
        }
    gr_say_error("completion for '%s': one of bash, zsh, fish is expected", o->arg[0]);
    return GR_EXIT_USAGE;
}
