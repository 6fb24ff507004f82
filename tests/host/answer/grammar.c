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
    static const char ends[] = "\"}]</\n";
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
    cr_expect(n >= 18 * 60 && n_several > 50, "%d, %d", n, n_several);
    gr_vec_fini(&text);
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
                   NULL, "cannot stand in a tag");
}
