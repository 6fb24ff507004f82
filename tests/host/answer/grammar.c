/* Texts drawn from grammars of calls are read back as calls of the tools, with arguments by their
 * schemas. */
#include <jansson.h>

#include "answer/rules.h"
#include "host/answer/read.h"
#include "host/grammar/bytes.h"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "
    "{\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": "
    "\"integer\", "
    "\"minimum\": 1, \"maximum\": 14}, \"unit\": {\"type\": \"string\", \"enum\": [\"C\", \"F\"]}, "
    "\"at\": {\"$ref\": \"#/$defs/at\"}}, \"required\": [\"city\", \"days\"], "
    "\"additionalProperties\": "
    "false, \"$defs\": {\"at\": {\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, "
    "\"maxItems\": "
    "2}}}}}, {\"name\": \"stop\"}]";

static int make(struct gr_grammar_state **s, const struct gr_answer_calls *calls)
{
    struct gr_rules rules;
    struct gr_grammar *g = NULL;
    cr_assert_eq(gr_rules_init(&rules), 0);
    int rc = gr_answer_rules(&rules, calls, NULL);
    if (!rc)
        rc = gr_grammar_new(&g, &rules, byte_trie(), 0, 0);
    gr_rules_fini(&rules);
    *s = rc ? NULL : state_of(g);
    return rc;
}

static struct gr_answer_calls calls_of(const char *format, const char *name, bool several)
{
    return (struct gr_answer_calls){.format = format,
                                    .tools = tools,
                                    .n_tools = sizeof tools - 1,
                                    .name = name,
                                    .several = several};
}

/* One of the allowed bytes; late in the text one that ends something, if it can. */
static int32_t draw(const uint32_t *mask, struct gr_rng *rng, bool late)
{
    static const char ends[] = "\"}]</|e\n";
    uint32_t n = 0, k;
    for (int i = 0; late && i < 8; i++) {
        int32_t id = ends[gr_rng_below(rng, sizeof ends - 1)];
        if (mask[id / 32] >> (id % 32) & 1)
            return id;
    }
    for (int32_t id = 0; id < 256; id++)
        n += mask[id / 32] >> (id % 32) & 1;
    k = n ? gr_rng_below(rng, n) : 0;
    for (int32_t id = 0; id < 256; id++)
        if (mask[id / 32] >> (id % 32) & 1 && !k--)
            return id;
    return -1;
}

static void draw_text(struct gr_grammar_state *s, struct gr_rng *rng, struct gr_vec *text)
{
    gr_grammar_state_reset(s);
    text->n = 0;
    while (!gr_grammar_may_end(s) || gr_rng_below(rng, 2)) {
        const uint32_t *mask;
        cr_assert_eq(gr_grammar_allowed(s, &mask), 0, "%s", gr_error());
        int32_t id = draw(mask, rng, text->n > 120);
        if (id < 0)
            break;
        char c = (char)id;
        cr_assert_eq(gr_grammar_accept(s, id), 0, "%s", gr_error());
        add(text, &c, 1);
        cr_assert(text->n < 20000, "the text ends");
    }
    cr_assert(gr_grammar_may_end(s));
}

static void check_call(const char *format, const struct reading *r, int32_t i)
{
    json_error_t e;
    json_t *j = json_loadb(r->arguments[i].data, r->arguments[i].n, JSON_ALLOW_NUL, &e), *v;
    cr_assert(json_is_object(j), "%s: %s: %s", format, e.text, (char *)r->log.data);
    if (!strcmp(r->name[i], "stop")) {
        cr_assert_eq(json_object_size(j), 0);
        json_decref(j);
        return;
    }
    cr_assert_str_eq(r->name[i], "get_weather");
    size_t n = 2;
    cr_assert(json_is_string(json_object_get(j, "city")), "%s", (char *)r->log.data);
    v = json_object_get(j, "days");
    cr_assert(json_is_integer(v) && json_integer_value(v) >= 1 && json_integer_value(v) <= 14, "%s",
              (char *)r->log.data);
    if ((v = json_object_get(j, "unit"))) {
        n++;
        cr_assert(!strcmp(json_string_value(v), "C") || !strcmp(json_string_value(v), "F"));
    }
    if ((v = json_object_get(j, "at"))) {
        n++;
        cr_assert(json_is_array(v) && json_array_size(v) <= 2, "%s", (char *)r->log.data);
    }
    cr_assert_eq(json_object_size(j), n, "%s", (char *)r->log.data);
    json_decref(j);
}

/* The end of the prompt that the written calls follow. */
static const char *prompt_of(const char *format)
{
    return strcmp(format, "functionary-v3.2") ? NULL : ">>>";
}

Test(grammar, drawn_calls_are_read_back, .timeout = 120)
{
    struct gr_rng rng = gr_rng_new(3);
    struct gr_vec text = {0};
    const char *format;
    int n = 0, n_several = 0;
    for (int32_t i = 0; (format = gr_answer_known(i, NULL)); i++) {
        for (int k = 0; k < 60 && strcmp(format, "plain") != 0; k++) {
            struct gr_answer_calls calls = calls_of(format, k % 3 ? NULL : "get_weather", k % 2);
            struct gr_grammar_state *s;
            struct reading r;
            cr_assert_eq(make(&s, &calls), 0, "%s: %s", format, gr_error());
            draw_text(s, &rng, &text);
            gr_grammar_state_free(&s);
            read_answer(&r, format, prompt_of(format), tools, text.data, text.n, 7, &rng);
            cr_assert(r.n_done > 0 && !r.text.n, "%s: %.*s\n%s", format, (int)text.n,
                      (char *)text.data, (char *)r.log.data);
            cr_assert(r.n_done == 1 || k % 2, "one call where one is allowed");
            for (int32_t c = 0; c < r.n_done && c < MOST_CALLS; c++)
                check_call(format, &r, c);
            for (int32_t c = 0; c < r.n_done && c < MOST_CALLS && !(k % 3); c++)
                cr_assert_str_eq(r.name[c], "get_weather");
            n_several += r.n_done > 1;
            reading_fini(&r);
            n++;
        }
    }
    cr_expect(n >= 30 * 60 && n_several > 50, "%d, %d", n, n_several);
    gr_vec_fini(&text);
}

/* ---- optional calls ---- */

static struct gr_grammar_state *make_optional(const char *format, const char *prompt)
{
    struct gr_answer_calls calls = calls_of(format, NULL, true);
    struct gr_grammar_state *s;
    calls.optional = true;
    calls.prompt = prompt, calls.n_prompt = prompt ? strlen(prompt) : 0;
    cr_assert_eq(make(&s, &calls), 0, "%s: %s", format, gr_error());
    return s;
}

#define STOP "{\"name\": \"stop\", \"arguments\": {}}"

Test(grammar, optional_calls)
{
    static const struct {
        const char *prompt, *text;
        bool fine;
    } cases[] = {
        {NULL, "", true},
        {NULL, "Hello, \xc3\xa9 a < b <tool <tool_ </think>", true},
        {NULL, "<tool_call>\n" STOP "\n</tool_call>", true},
        {NULL, "I look.\n<tool_call>\n" STOP "\n</tool_call>", true},
        {NULL, "<<tool_call>\n" STOP "\n</tool_call>", true},
        {NULL,
         "<tool<tool_call<tool_call>\n" STOP "\n</tool_call>\n<tool_call>\n" STOP "\n</tool_call>",
         true},
        {NULL, "<tool_call>", false},
        {NULL, "x<tool_call>no", false},
        {NULL, "<tool_call>\n{\"name\": \"go\", \"arguments\": {}}\n</tool_call>", false},
        {NULL, "<tool_call>\n" STOP "\n</tool_call> more", false},
        {NULL, "<think>\nor <tool_call>?</think>\n\nNo.", true},
        {NULL, "<think>or <tool_call>?</think><tool_call>no", false},
        {NULL, "<think>or <tool_call>?", false},
        {NULL, "or <tool_call>?</think>No.", false},
        {"<think>\n", "or <tool_call>?</think>No.", true},
        {"<think>\n", "or <tool_call>?</think><tool_call>\n" STOP "\n</tool_call>", true},
        {"<think>\n", "or <tool_call>?</think><tool_call>no", false},
        {"<think></think>", "or <tool_call>?</think>No.", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gr_grammar_state *s = make_optional("hermes", cases[i].prompt);
        cr_expect_eq(accepts(s, cases[i].text), cases[i].fine, "%zu: %s", i, cases[i].text);
        gr_grammar_state_free(&s);
    }
}

static const struct {
    const char *format, *mark; /* what begins calls; NULL: nothing does */
} marks[] = {{"deepseek-r1", "<\xef\xbd\x9ctool\xe2\x96\x81"
                             "calls\xe2\x96\x81"
                             "begin\xef\xbd\x9c>"},
             {"command-r7b", "<|START_ACTION|>"},
             {"kimi-k2", "<|tool_calls_section_begin|>"},
             {"minimax-m2", "<minimax:tool_call>"},
             {"seed-oss", "<seed:tool_call>"},
             {"solar-open", "<|tool_calls|>"},
             {"hy3", "<tool_calls:opensource>"},
             {"gigachat3", "<|message_sep|>"},
             {"gigachat3.1", "<|function_call|>"},
             {"glm", "<tool_call>"},
             {"qwen3-coder", "<tool_call>"},
             {"hermes", "<tool_call>"},
             {"harmony", "<|channel|>commentary to="},
             {"functionary-v3.2", NULL},
             {"functionary-v3.1", "<function="},
             {"llama3", NULL},
             {"mistral-args", "[TOOL_CALLS]"},
             {"mistral", "[TOOL_CALLS]"},
             {"phi4-mini", "<|tool_call|>"},
             {"granite3", "<|tool_call|>"},
             {"command-r", "Action:"},
             {"deepseek-v3.2", "<\xef\xbd\x9c"
                               "DSML\xef\xbd\x9c"
                               "function_calls>"},
             {"lfm2-tools", "<|tool_call_start|>"},
             {"olmo3", "<function_calls>"},
             {"apertus-tools", "<|tools_prefix|>"},
             {"nemotron-tools", "<TOOLCALL>"},
             {"hunyuan", "<tool_calls>"},
             {"jamba-tools", "<tool_calls>"},
             {"internlm2-tools", "<|action_start|>"},
             {"minimax-m1", "<tool_calls>"},
             {"gemma4", "<|tool_call>call:"},
             {"functiongemma", "<start_function_call>call:"},
             {"llama4-pythonic", "<|python_start|>"},
             {"json", NULL}};

/* Beginnings of the mark in any order, characters, sometimes the mark. */
static void random_text(struct gr_rng *rng, const char *mark, char *to, size_t n)
{
    static const char *const parts[] = {"x", " ", "\n", "\xc3\xa9", "<", ">", "{\"", "[", "A"};
    to[0] = 0;
    for (uint32_t i = gr_rng_below(rng, 8); i; i--) {
        size_t length = strlen(mark), k = length;
        if (gr_rng_below(rng, 5))
            k = gr_rng_below(rng, (uint32_t)length);
        while (((uint8_t)mark[k] & 0xc0) == 0x80)
            k--;
        if (gr_rng_below(rng, 2))
            snprintf(to + strlen(to), n - strlen(to), "%.*s", (int)k, mark);
        else
            strcat(to, parts[gr_rng_below(rng, 9)]);
    }
}

/* Text is free as long as the mark is not within; behind it comes a call, which is read back. */
Test(grammar, random_texts_before_optional_calls, .timeout = 120)
{
    struct gr_rng rng = gr_rng_new(11);
    struct gr_vec call = {0};
    int n_free = 0, n_marked = 0;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *mark = marks[i].mark;
        struct gr_answer_calls calls = calls_of(marks[i].format, NULL, true);
        struct gr_grammar_state *forced, *s = NULL;
        cr_assert_eq(make(&forced, &calls), 0, "%s", gr_error());
        calls.optional = true;
        cr_assert_eq(make(&s, &calls), mark ? 0 : GR_E_UNSUPPORTED, "%s", marks[i].format);
        for (int k = 0; k < 150 && mark; k++) {
            char text[512];
            struct reading r;
            random_text(&rng, mark, text, sizeof text);
            bool marked = strstr(text, mark) != NULL;
            cr_assert_eq(accepts(s, text), !marked, "%s: %s", mark, text);
            marked ? n_marked++ : n_free++;
            draw_text(forced, &rng, &call);
            strcpy(text, k % 2 ? "I look. " : "");
            gr_grammar_state_reset(s);
            for (const char *p = text; *p; p++)
                cr_assert_eq(gr_grammar_accept(s, (uint8_t)*p), 0);
            for (size_t c = 0; c < call.n; c++)
                cr_assert_eq(gr_grammar_accept(s, ((uint8_t *)call.data)[c]), 0, "%s: %.*s",
                             marks[i].format, (int)call.n, (char *)call.data);
            cr_assert(gr_grammar_may_end(s));
            read_answer(&r, marks[i].format, NULL, tools, call.data, call.n, 9, &rng);
            cr_assert(r.n_done > 0);
            reading_fini(&r);
        }
        gr_grammar_state_free(&s);
        gr_grammar_state_free(&forced);
    }
    cr_expect(n_free > 1000 && n_marked > 300, "%d, %d", n_free, n_marked);
    gr_vec_fini(&call);
}

/* A state of a grammar with control tokens for marks. */
static struct gr_grammar_state *optional_state(const char *format, struct gr_vocab **v,
                                               struct gr_token_trie **trie, const char *token)
{
    const char *const texts[] = {"<|end|>", token};
    struct gr_answer_calls calls = calls_of(format, "stop", false);
    struct gr_rules rules;
    struct gr_grammar *g;
    calls.optional = true;
    cr_assert_eq(byte_vocab_open(v, texts, 2), 0);
    cr_assert_eq(gr_token_trie_new(trie, *v), 0);
    cr_assert_eq(gr_rules_init(&rules), 0);
    cr_assert_eq(gr_answer_rules(&rules, &calls, *v), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_new(&g, &rules, *trie, 0, 0), 0, "%s", gr_error());
    gr_rules_fini(&rules);
    return state_of(g);
}

/* Accepts the bytes of a text, "#" as the control token; false: one is refused. */
static bool accepts_with_token(struct gr_grammar_state *s, const char *text)
{
    int rc = 0;
    gr_grammar_state_reset(s);
    for (; *text && !rc; text++)
        rc = gr_grammar_accept(s, *text == '#' ? 257 : (uint8_t)*text);
    return !rc;
}

Test(grammar, optional_calls_behind_control_tokens)
{
    struct gr_token_trie *trie;
    struct gr_vocab *v;
    struct gr_grammar_state *s = optional_state("hermes", &v, &trie, "<tool_call>");
    cr_expect(accepts_with_token(s, "a <tool") && gr_grammar_may_end(s));
    cr_expect(accepts_with_token(s, "a#\n" STOP "\n</tool_call>") && gr_grammar_may_end(s));
    cr_expect(!accepts_with_token(s, "a#x"));
    gr_grammar_state_free(&s);
    gr_token_trie_free(&trie);
    gr_vocab_close(&v);
    s = optional_state("harmony", &v, &trie, "<|channel|>");
    cr_expect(accepts_with_token(s, "#analysis<|message|>hm, com<|end|>#comma#final") &&
              gr_grammar_may_end(s));
    cr_expect(accepts_with_token(s, "##commentary to=functions.stop "));
    cr_expect(!gr_grammar_may_end(s));
    cr_expect(!accepts_with_token(s, "x#commentary to=functions.go"));
    cr_expect(!accepts_with_token(s, "x#commentary to=python"));
    gr_grammar_state_free(&s);
    gr_token_trie_free(&trie);
    gr_vocab_close(&v);
}

Test(grammar, marks_are_control_tokens)
{
    static const char *const texts[] = {"<|end|>", "<tool_call>"};
    struct gr_answer_calls calls = calls_of("hermes", "stop", false);
    struct gr_token_trie *trie;
    struct gr_vocab *v;
    struct gr_rules rules;
    struct gr_grammar *g;
    static const char rest[] = "\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
    cr_assert_eq(byte_vocab_open(&v, texts, 2), 0);
    cr_assert_eq(gr_token_trie_new(&trie, v), 0);
    cr_assert_eq(gr_rules_init(&rules), 0);
    cr_assert_eq(gr_answer_rules(&rules, &calls, v), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_new(&g, &rules, trie, 0, 0), 0, "%s", gr_error());
    gr_rules_fini(&rules);
    struct gr_grammar_state *s = state_of(g);
    cr_expect_eq(gr_grammar_accept(s, '<'), GR_E_INVALID, "its bytes are not the token");
    gr_grammar_state_reset(s);
    cr_assert_eq(gr_grammar_accept(s, 257), 0, "%s", gr_error());
    for (size_t i = 0; i < sizeof rest - 1; i++)
        cr_assert_eq(gr_grammar_accept(s, (uint8_t)rest[i]), 0, "byte %zu: %s", i, gr_error());
    cr_expect(gr_grammar_may_end(s));
    gr_grammar_state_free(&s);
    gr_token_trie_free(&trie);
    gr_vocab_close(&v);
}

static void expect_refused(const char *format, const char *tools_text, const char *name,
                           const char *words)
{
    struct gr_answer_calls calls = {
        .format = format, .tools = tools_text, .n_tools = strlen(tools_text), .name = name};
    struct gr_grammar_state *s;
    cr_expect_eq(make(&s, &calls), GR_E_INVALID, "%s", tools_text);
    cr_expect(strstr(gr_error(), words) && !strchr(gr_error(), '\n'), "%s: %s", words, gr_error());
    gr_grammar_state_free(&s);
}

Test(grammar, wrong_tools_are_refused)
{
    expect_refused("plain", tools, NULL, "with calls");
    expect_refused("nosuch", tools, NULL, "nosuch");
    expect_refused("hermes", tools, "go", "there is no function 'go'");
    expect_refused("hermes", "[", NULL, "line 1");
    expect_refused("hermes", "{}", NULL, "at least one tool");
    expect_refused("hermes", "[]", NULL, "at least one tool");
    expect_refused("hermes", "[1]", NULL, "needs a name");
    expect_refused("hermes", "[{\"name\": \"a b\"}]", NULL, "needs a name");
    expect_refused("hermes", "[{\"name\": \"f\", \"parameters\": 1}]", NULL, "a JSON schema");
    expect_refused("hermes", "[{\"name\": \"f\", \"parameters\": {\"not\": {}}}]", NULL, "not");
    expect_refused(
        "glm",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"string\", "
        "\"minLength\": 2}}}}]",
        NULL, "minLength");
    expect_refused("glm", "[{\"name\": \"f\", \"parameters\": {\"required\": [\"a\"]}}]", NULL,
                   "not in properties");
    expect_refused("glm",
                   "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a>\": {\"type\": "
                   "\"string\"}}}}]",
                   NULL, "cannot be written in this format");
}
