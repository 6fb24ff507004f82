/* gpurun chat in a pipe: each answer is that of gpurun run to the rendered conversation. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf.h"
#include "tiny.h"

#define TEMPLATE                                                                                   \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"                           \
    "{% if add_generation_prompt %}assistant:{% endif %}"
#define EXACT "-t", "1", "--cpu-level", "ref", "--ignore-eos", "--no-warmup"
#define CHAT "chat", "-t", "1", "--no-warmup", "--chat-template", TEMPLATE

/* The objects that --json printed, a list. */
static json_t *turns_of(struct outcome o)
{
    json_t *list = json_array();
    for (char *line = o.out, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        cr_assert(end, "%s", line);
        json_t *turn = json_loadb(line, (size_t)(end - line), 0, NULL);
        cr_assert(turn, "%s", line);
        json_array_append_new(list, turn);
    }
    return list;
}

static const char *text_of(json_t *turns, size_t i, const char *name)
{
    const char *text = json_string_value(json_object_get(json_array_get(turns, i), name));
    return text ? text : "(none)";
}

static long count_of(json_t *turns, size_t i, const char *name)
{
    return (long)json_integer_value(json_object_get(json_array_get(turns, i), name));
}

static void add_message(json_t *list, const char *role, const char *text)
{
    json_array_append_new(list, json_pack("{s:s, s:s}", "role", role, "content", text));
}

/* The prompt of these messages, by gpurun template. */
static const char *render(json_t *messages)
{
    json_t *all = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", 1);
    char *text = json_dumps(all, 0);
    struct outcome o = GPURUN(text, "template", "--chat-template", TEMPLATE, "--messages", "-");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    json_decref(all);
    return o.out;
}

static const char *const line[] = {"Once upon a time", "The cat", "What did Max find?", "More"};
static const char lines[] = "Once upon a time\n\nThe cat\nWhat did Max find?\nMore";
enum { N_TURN = 4 };

/* Expects of each turn what run writes; model NULL: the built-in one. */
static void expect_as_run(const char *model, const char *temp, const char *n)
{
    const char *m = model ? "-m" : "--no-escape", *path = model ? model : "--no-escape";
    struct outcome o = GPURUN(lines, "chat", EXACT, "--chat-template", TEMPLATE, m, path, "--temp",
                              temp, "-s", "7", "-n", n, "--json", "-sys", "Tell.", "-c", "1024");
    expect_exit(o, 0, "chat: 4 turns");
    json_t *turns = turns_of(o), *messages = json_array();
    cr_assert_eq(json_array_size(turns), N_TURN, "%s", o.out);
    add_message(messages, "system", "Tell.");
    for (size_t i = 0; i < N_TURN; i++) {
        char seed[8];
        snprintf(seed, sizeof seed, "%zu", 7 + i);
        add_message(messages, "user", line[i]);
        struct outcome r =
            GPURUN(NULL, "run", EXACT, m, path, "-p", render(messages), "--no-escape", "--temp",
                   temp, "-s", seed, "-n", n, "--json", "-c", "1024");
        cr_assert_eq(r.exit_code, 0, "%s", r.err);
        json_t *run = json_loads(r.out, 0, NULL);
        cr_expect_str_eq(text_of(turns, i, "content"),
                         json_string_value(json_object_get(run, "text")));
        cr_expect_eq(count_of(turns, i, "prompt_tokens"),
                     json_integer_value(json_object_get(run, "prompt_tokens")));
        cr_expect_str_eq(text_of(turns, i, "role"), "assistant");
        cr_expect_str_eq(text_of(turns, i, "stop"), "length");
        add_message(messages, "assistant", text_of(turns, i, "content"));
        json_decref(run);
    }
    json_decref(messages);
    json_decref(turns);
}

Test(chat_turns, answers_are_those_of_run, .timeout = 120)
{
    expect_as_run(NULL, "0", "12");
    expect_as_run(NULL, "0.8", "12");
}

/* Models that cannot take back tokens compute again what cannot stay. */
Test(chat_turns, answers_of_recurrent_models, .timeout = 120)
{
    static const char *const arch[] = {"mamba", "rwkv6", "gemma3"};
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s", tiny_path("model.gguf"));
        tiny_write_arch(arch[i], path);
        expect_as_run(path, "0", "5");
    }
}

/* Tokens of a conversation that are in the cache are not computed again. */
Test(chat_turns, the_common_beginning_is_kept, .timeout = 60)
{
    struct outcome o =
        GPURUN(lines, CHAT, "--ignore-eos", "--temp", "0", "-n", "12", "--json", "-c", "1024");
    json_t *turns = turns_of(o);
    cr_assert_eq(json_array_size(turns), N_TURN);
    cr_expect_eq(count_of(turns, 0, "kept_tokens"), 0);
    for (size_t i = 1; i < N_TURN; i++) {
        long before = count_of(turns, i - 1, "prompt_tokens"),
             kept = count_of(turns, i, "kept_tokens");
        cr_expect(kept >= before - 2 && kept < count_of(turns, i, "prompt_tokens"), "%zu: %ld", i,
                  kept);
    }
    json_decref(turns);
}

Test(chat_turns, plain_answers_are_lines, .timeout = 60)
{
    struct outcome o = GPURUN("a\n\r\nb\nc", CHAT, "--grammar", "root ::= \"yes\" | \"no\"",
                              "--temp", "0"),
                   one = GPURUN("a\nb\n", CHAT, "--grammar", "root ::= \"yes\"", "-st");
    int n = 0;
    for (char *p = strtok(o.out, "\n"); p; p = strtok(NULL, "\n"), n++)
        cr_expect(!strcmp(p, "yes") || !strcmp(p, "no"), "%s", p);
    cr_expect_eq(n, 3, "the grammar begins anew each turn");
    expect_exit(one, 0, "chat: 1 turn |");
    cr_expect_str_eq(one.out, "yes\n");
    o = GPURUN("b\n", CHAT, "-p", "a", "--grammar", "root ::= \"yes\"", "-q");
    cr_expect_str_eq(o.out, "yes\nyes\n");
    cr_expect_str_eq(o.err, "");
    o = GPURUN("b\n", CHAT, "-p", "a", "-st", "--grammar", "root ::= \"yes, yes\"", "--stop", ",");
    cr_expect_str_eq(o.out, "yes\n");
    o = GPURUN("", CHAT);
    cr_expect(!o.exit_code && !*o.out, "%s%s", o.out, o.err);
    o = GPURUN("/undo\n", CHAT, "--grammar", "root ::= \"yes\"");
    cr_expect_str_eq(o.out, "yes\n", "a pipe has no commands");
}

/* Drafts change the speed alone, in each turn anew. */
Test(chat_turns, answers_with_drafts, .timeout = 60)
{
#define DRAFTED(...) GPURUN(lines, CHAT, "--temp", "0", "-n", "24", "-c", "1024", "-q", __VA_ARGS__)
    struct outcome plain = DRAFTED("--no-spec-adaptive"),
                   text = DRAFTED("--no-spec-adaptive", "--spec-type", "ngram",
                                  "--spec-ngram-size-n", "2"),
                   model = DRAFTED("--no-spec-adaptive", "-md",
                                   GR_SOURCE_DIR "/tools/default-model.gguf", "--draft-max", "4");
    expect_exit(plain, 0, "");
    cr_expect_str_eq(text.out, plain.out);
    cr_expect_str_eq(model.out, plain.out);
    cr_expect(!*text.err && !*model.err, "%s%s", text.err, model.err);
}

/* ---- reasoning ---- */

#define THOUGHT "root ::= \"<think>hm</think>\\n\\nok\""

static void expect_parts(struct outcome o, const char *content, const char *reasoning)
{
    json_t *turns = turns_of(o);
    cr_expect_str_eq(text_of(turns, 0, "content"), content);
    cr_expect_str_eq(text_of(turns, 0, "reasoning_content"), reasoning);
    json_decref(turns);
}

Test(chat_turns, reasoning_is_apart, .timeout = 60)
{
    static const char whole[] = "<think>hm</think>\n\nok";
    cr_expect_str_eq(GPURUN("a", CHAT, "--grammar", THOUGHT).out, "ok\n");
    cr_expect_str_eq(GPURUN("a", CHAT, "--grammar", THOUGHT, "--reasoning-format", "none").out,
                     "<think>hm</think>\n\nok\n");
#define FORMAT(word) GPURUN("a", CHAT, "--json", "--grammar", THOUGHT, "--reasoning-format", word)
    expect_parts(FORMAT("auto"), "ok", "hm");
    expect_parts(FORMAT("deepseek"), "ok", "hm");
    expect_parts(FORMAT("hidden"), "ok", "hm");
    expect_parts(FORMAT("none"), whole, "(none)");
    expect_parts(FORMAT("deepseek-legacy"), whole, "hm");
    expect_parts(GPURUN("a", "chat", "-t", "1", "--json", "--chat-template",
                        "{{ messages[0].content }}{{ enable_thinking }}<think>\n", "-rea", "on",
                        "--grammar", "root ::= \"hm</think>ok\""),
                 "ok", "hm");
}

/* Lines that end as DOS writes them are the same messages. */
Test(chat_turns, lines_of_dos, .timeout = 60)
{
    struct outcome o = GPURUN("one\ntwo\n", CHAT, "--temp", "0", "--json", "-n", "2");
    json_t *turns = turns_of(o);
    struct outcome dos = GPURUN("one\r\ntwo\r\n", CHAT, "--temp", "0", "--json", "-n", "2");
    json_t *same = turns_of(dos);
    cr_assert_eq(json_array_size(same), 2);
    for (size_t i = 0; i < 2; i++)
        cr_expect_eq(json_integer_value(json_object_get(json_array_get(turns, i), "prompt_tokens")),
                     json_integer_value(json_object_get(json_array_get(same, i), "prompt_tokens")));
    json_decref(turns);
    json_decref(same);
}

/* Tool calls are told from the text where the template knows them. */
Test(chat_turns, calls_are_apart, .timeout = 60)
{
#define CALLED                                                                                     \
    "root ::= \"<think>hm</think>ok\\n<tool_call>\\n{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": " \
    "{\\\"a\\\": 52.520008}}\\n</tool_call>\""
#define CALLING                                                                                    \
    "chat", "-t", "1", "--chat-template", TEMPLATE "{# <tool_call> #}", "--grammar", CALLED
    struct outcome o = GPURUN("a\n", CALLING, "--json");
    expect_parts(o, "ok", "hm");
    json_t *turns = turns_of(o),
           *call = json_array_get(json_object_get(json_array_get(turns, 0), "tool_calls"), 0);
    const char *name = NULL;
    double a = 0;
    cr_assert_eq(
        json_unpack(call, "{s:{s:s, s:{s:f}}}", "function", "name", &name, "arguments", "a", &a), 0,
        "%s", o.out);
    cr_expect(!strcmp(name, "f") && a == 52.520008, "%s", o.out);
    json_decref(turns);
    o = GPURUN("a\n", CALLING);
    cr_expect_str_eq(o.out, "ok\n{\"name\":\"f\",\"arguments\":{\"a\":52.520008}}\n");
    o = GPURUN("a\n", CHAT, "--grammar", CALLED);
    cr_expect(strstr(o.out, "ok\n<tool_call>"), "the template knows no calls: %s", o.out);
}

/* Where calls are one list, none of them is complete before the last one is. */
Test(chat_turns, calls_of_one_list, .timeout = 60)
{
#define LISTED                                                                                     \
    "root ::= \"[TOOL_CALLS][{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}, \""     \
    " \"{\\\"name\\\": \\\"g\\\", \\\"arguments\\\": {\\\"b\\\": 2}}]\""
#define LISTING                                                                                    \
    "chat", "-t", "1", "--chat-template", TEMPLATE "{# [TOOL_CALLS] #}", "--grammar", LISTED
    struct outcome o = GPURUN("a\n", LISTING, "--json");
    json_t *turns = turns_of(o);
    const char *f = NULL, *g = NULL;
    int a = 0, b = 0;
    cr_assert_eq(json_unpack(json_array_get(turns, 0),
                             "{s:[{s:{s:s, s:{s:i}}}, {s:{s:s, s:{s:i}}}]}", "tool_calls",
                             "function", "name", &f, "arguments", "a", &a, "function", "name", &g,
                             "arguments", "b", &b),
                 0, "%s", o.out);
    cr_expect(!strcmp(f, "f") && !strcmp(g, "g") && a == 1 && b == 2, "%s", o.out);
    json_decref(turns);
    o = GPURUN("a\n", LISTING);
    cr_expect_str_eq(o.out, "{\"name\":\"f\",\"arguments\":{\"a\":1}}\n"
                            "{\"name\":\"g\",\"arguments\":{\"b\":2}}\n");
}

/* deepseek-legacy changes what is shown, and not the messages that the template sees. */
Test(chat_turns, legacy_shows_reasoning_in_the_text, .timeout = 60)
{
#define PARTS                                                                                      \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}|{{ m.reasoning_content }}|"              \
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}\n{% endfor %}"            \
    "{# <tool_call> #}"
#define TURNS(word)                                                                                \
    GPURUN("a\nb\n", "chat", "-t", "1", "--chat-template", PARTS, "--grammar", CALLED, "--json",   \
           "--reasoning-format", word)
    struct outcome plain = TURNS("deepseek"), legacy = TURNS("deepseek-legacy");
    json_t *expected = turns_of(plain), *turns = turns_of(legacy);
    cr_assert_eq(json_array_size(turns), 2, "%s", legacy.err);
    expect_parts(plain, "ok", "hm");
    expect_parts(legacy, "<think>hm</think>\n\nok", "hm");
    cr_expect(json_object_get(json_array_get(turns, 0), "tool_calls"), "%s", legacy.out);
    cr_expect_eq(count_of(turns, 1, "prompt_tokens"), count_of(expected, 1, "prompt_tokens"),
                 "%s%s", plain.out, legacy.out);
    json_decref(expected);
    json_decref(turns);
    struct outcome o = GPURUN("a\n", CALLING, "--reasoning-format", "deepseek-legacy");
    cr_expect_str_eq(o.out, "<think>hm</think>\n\nok\n"
                            "{\"name\":\"f\",\"arguments\":{\"a\":52.520008}}\n");
    o = GPURUN("a\n", CHAT, "--reasoning-format", "deepseek-legacy", "--grammar",
               "root ::= \"<think>hm\"");
    cr_expect_str_eq(o.out, "<think>hm\n");
    expect_parts(GPURUN("a", "chat", "-t", "1", "--json", "--chat-template",
                        "{{ messages[0].content }}<think>\n", "--grammar",
                        "root ::= \"hm</think>ok\"", "--reasoning-format", "deepseek-legacy"),
                 "<think>hm</think>\n\nok", "hm");
}

/* ---- lengths ---- */

Test(chat_turns, a_full_context, .timeout = 60)
{
    struct outcome o = GPURUN(lines, CHAT, "--ignore-eos", "--temp", "0", "-c", "256", "--json");
    expect_exit(o, 1, "prompt is too long (");
    cr_expect(strstr(o.err, "the context of 256 tokens is full") &&
                  strstr(o.err, "--context-shift its newest part"),
              "%s", o.err);
    json_t *turns = turns_of(o);
    cr_expect_eq(json_array_size(turns), 2);
    cr_expect_str_eq(text_of(turns, 0, "stop"), "context");
    cr_expect_str_eq(text_of(turns, 1, "stop"), "error");
    cr_expect(strstr(text_of(turns, 1, "error"), "prompt is too long"));
    json_decref(turns);
    o = GPURUN(lines, "chat", EXACT, "--chat-template",
               "{% for m in messages %}{{ m.content }} {% endfor %}", "--temp", "0", "-c", "256",
               "-n", "200", "--json", "--context-shift", "-sys", "Tell.");
    expect_exit(o, 0, "chat: 4 turns");
    turns = turns_of(o);
    cr_expect_eq(json_array_size(turns), N_TURN);
    for (size_t i = 1; i < json_array_size(turns); i++)
        cr_expect(count_of(turns, i, "prompt_tokens") - count_of(turns, i, "kept_tokens") < 32,
                  "what a shift has left is kept: %s", o.out);
    json_decref(turns);
    expect_exit(GPURUN(lines, CHAT, "--ignore-eos", "--temp", "0", "-c", "1024", "-n", "120",
                       "-gan", "4", "-gaw", "64"),
                0, "Self-Extend 4 / 64");
}

/* ---- what is refused, and what is a chat ---- */

static void set_broken(struct gr_gguf_writer *w)
{
    cr_assert_eq(gr_gguf_set_str(w, "tokenizer.chat_template", "{{ raise_exception('no') }}"), 0);
}

Test(chat_turns, mistakes, .timeout = 60)
{
    expect_exit(GPURUN("a\xff\n", CHAT), 2, "the user message of 2 bytes is no UTF-8");
    expect_exit(GPURUN("a\n", CHAT, "-sysf", "/no/such"), 6, "cannot read '/no/such'");
    expect_exit(GPURUN("a\n", CHAT, "-sys", "a", "-sysf", "b"), 2, "-sys and -sysf");
    expect_exit(GPURUN("a\n", "chat", "-t", "1", "-m", tiny_edited_model("t.gguf", set_broken)), 1,
                "no");
    expect_exit(GPURUN("a\n", "chat", "-t", "1", "-m", tiny_encoder_decoder()), 3,
                "holds no conversation");
    expect_exit(GPURUN("a\n", "chat", "-t", "1", "-m", tiny_encoder()), 3, "gpurun embed");
    expect_exit(GPURUN("a\n", CHAT, "--context-shift", "-gan", "2"), 2, "both move positions");
    expect_exit(GPURUN("a\n", CHAT, "--reasoning-format", "x"), 2,
                "auto|none|deepseek|deepseek-legacy|hidden");
}

Test(chat_turns, command_lines_of_run, .timeout = 60)
{
#define YES "-t", "1", "--grammar", "root ::= \"yes\"", "-p", "a", "--chat-template", TEMPLATE
    expect_exit(GPURUN("", "run", "-cnv", YES), 0, "chat: 1 turn |");
    expect_exit(GPURUN("", "-i", YES), 0, "chat: 1 turn |");
    expect_exit(GPURUN("", "-st", YES), 0, "chat: 1 turn |");
    expect_exit(GPURUN("", "--single-turn", "--system-prompt=b", YES), 0, "chat: 1 turn |");
    expect_exit(GPURUN("", "-no-cnv", YES), 2, "gpurun run has no flag --chat-template");
    expect_exit(GPURUN("", "-t", "1", "-n", "1", "-no-cnv", "-p", "-cnv"), 0, "run: ");
    expect_exit(GPURUN("", "-t", "1", "-n", "1", "-p", "-cnv"), 0, "run: ");
    expect_exit(GPURUN("", "run", "-cnv", "--in-prefix", "x", YES), 0, "has no effect");
}
