/* Answers of which calls are not wanted: they are text, to the byte. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"

struct wanted {
    struct gr_vec text, reasoning;
};

static int take(const struct gr_answer_delta *d, void *user)
{
    struct wanted *w = user;
    cr_assert(d->part == GR_ANSWER_TEXT || d->part == GR_ANSWER_REASONING, "part %d", d->part);
    cr_assert_eq(d->call, -1);
    return gr_vec_append(d->part == GR_ANSWER_TEXT ? &w->text : &w->reasoning, d->text, d->n, 1);
}

static bool equals(const struct gr_vec *v, const char *text)
{
    return v->n == strlen(text) && (!v->n || !memcmp(v->data, text, v->n));
}

/* Reads an answer in pieces of `piece` bytes. */
static void read_text(const char *format, const char *prompt, const char *answer, size_t piece,
                      const char *reasoning, const char *text)
{
    static const char tools[] = "[{\"function\": {\"name\": \"f\"}}]";
    struct wanted w = {0};
    struct gr_answer_params params = {.format = format,
                                      .prompt = prompt,
                                      .n_prompt = strlen(prompt),
                                      .tools = tools,
                                      .n_tools = sizeof tools - 1,
                                      .no_calls = true,
                                      .fn = take,
                                      .user = &w};
    struct gr_answer *a;
    size_t n = strlen(answer);
    cr_assert_eq(gr_answer_new(&a, &params), 0, "%s", gr_error());
    for (size_t at = 0; at < n; at += piece)
        cr_assert_eq(gr_answer_push(a, answer + at, n - at < piece ? n - at : piece), 0);
    cr_assert_eq(gr_answer_end(a), 0, "%s", gr_error());
    gr_answer_free(&a);
    cr_expect(equals(&w.text, text), "%s: %s\nread     %.*s\nexpected %s", format, answer,
              (int)w.text.n, w.text.n ? (const char *)w.text.data : "", text);
    cr_expect(equals(&w.reasoning, reasoning), "%s: %s", format, answer);
    gr_vec_fini(&w.text);
    gr_vec_fini(&w.reasoning);
}

/* reasoning, text: NULL: none; the answer. */
struct text_case {
    const char *format, *prompt, *answer, *reasoning, *text;
};

#define CALL "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"

Test(answer, calls_that_are_not_wanted_are_text)
{
    static const struct text_case cases[] = {
        {"hermes", "", "I look. \n<tool_call>\n" CALL "\n</tool_call>\nx", NULL, NULL},
        {"hermes", "", "<tool_call>" CALL "</tool_call><tool_call>" CALL, NULL, NULL},
        {"hermes", "", "<tool_call>{\"name\": \"f\"}</tool_call>", NULL, NULL},
        {"hermes", "", "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", NULL,
         NULL},
        {"hermes", "<think>\n", "hm</think>\n\n<tool_call>" CALL "</tool_call>", "hm",
         "<tool_call>" CALL "</tool_call>"},
        {"hermes", "<tool_call>\n", CALL "\n</tool_call>", NULL, NULL},
        {"json", "", CALL, NULL, NULL},
        {"json", "", "[" CALL "]", NULL, NULL},
        {"llama3", "", "<|python_tag|>" CALL, NULL, NULL},
        {"llama3", "", "<|python_tag|>f.call(a=1)", NULL, NULL},
        {"llama3", "", CALL "; " CALL, NULL, NULL},
        {"mistral", "", "[TOOL_CALLS][" CALL "]", NULL, NULL},
        {"mistral-args", "", "[TOOL_CALLS]f[ARGS]{\"a\": 1}", NULL, NULL},
        {"functionary-v3.2", ">>>", "all\nHello", NULL, "Hello"},
        {"functionary-v3.2", ">>>", "f\n{\"a\": 1}", NULL, NULL},
        {"functionary-v3.2", ">>>", "all\nHello\n>>>f\n{\"a\": 1}", NULL,
         "Hello\n>>>f\n{\"a\": 1}"},
        {"functionary-v3.2", "", ">>>all\nHello", NULL, "Hello"},
        {"functionary-v3.1", "", "<function=f>{\"a\": 1}</function>", NULL, NULL},
        {"qwen3-coder", "",
         "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
         NULL, NULL},
        {"glm", "", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
         NULL, NULL},
        {"minimax-m2", "",
         "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>", NULL, NULL},
        {"seed-oss", "", "<seed:tool_call>\n<function=f>\n</function>\n</seed:tool_call>", NULL,
         NULL},
        {"kimi-k2", "",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
         "{}<|tool_call_end|><|tool_calls_section_end|>",
         NULL, NULL},
        {"command-r7b", "", "<|START_RESPONSE|>Hello<|END_RESPONSE|>", NULL, "Hello"},
        {"harmony", "",
         "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"
         "Hello",
         "hm", "Hello"},
        {"harmony", "",
         "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct text_case *c = &cases[i];
        for (size_t piece = 1; piece < 300; piece = 3 * piece + 1)
            read_text(c->format, c->prompt, c->answer, piece, c->reasoning ? c->reasoning : "",
                      c->text ? c->text : c->answer);
    }
}
