/* Answers of chats: what they are read as, cut anywhere. */
#include <criterion/criterion.h>
#include <string.h>

#include "gpurun.h"
#include "tools/serve/reading.h"

TestSuite(reading, .timeout = 60);

/* A gr_call_fn: "name(arguments);", with an id that the model has written in front. */
static void add_call(struct gr_choice *c, const char *name, const char *id, const char *arguments,
                     size_t n)
{
    if (!strcmp(id, "abcdefghi"))
        gr_writef(&c->calls, "%s:", id);
    else
        cr_expect_eq(strlen(id), 9);
    gr_writef(&c->calls, "%s(%.*s);", name, (int)n, arguments);
}

static void expect(const struct gr_writer *w, const char *text)
{
    cr_expect_eq(w->n, strlen(text), "'%.*s', expected '%s'", (int)w->n, w->n ? w->p : "", text);
    cr_expect(w->n != strlen(text) || !memcmp(w->n ? w->p : "", text, w->n), "'%.*s'", (int)w->n,
              w->p);
}

struct expected {
    enum gr_reasoning how;
    const char *format, *answer, *text, *reasoning, *calls;
    enum { SEVERAL, ONE, NONE } wanted; /* calls */
};

/* Reads an answer in pieces of `size` bytes. */
static void check(const struct expected *e, size_t size)
{
    struct gr_choice choice = {0};
    struct gr_generation g = {.choice = &choice, .n_choice = 1};
    json_t *tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}},"
                               " {\"type\": \"function\", \"function\": {\"name\": \"g\"}}]",
                               0, NULL);
    struct gr_reading_params p = {.format = e->format,
                                  .tools = e->wanted == NONE ? NULL : tools,
                                  .several = e->wanted == SEVERAL,
                                  .reasoning = e->how,
                                  .call = add_call};
    choice.g = &g;
    cr_assert_eq(gr_reading_begin(&g, &p), 0, "%s", gr_error_message());
    size_t n = strlen(e->answer);
    for (size_t i = 0; i < n; i += size)
        gr_reading_push(&choice, e->answer + i, n - i < size ? n - i : size);
    gr_reading_end(&choice);
    expect(&choice.text, e->text);
    expect(&choice.reasoning, e->reasoning);
    expect(&choice.calls, e->calls);
    gr_reading_free(&g);
    gr_writer_free(&choice.text);
    gr_writer_free(&choice.reasoning);
    gr_writer_free(&choice.calls);
    json_decref(tools);
}

Test(reading, text_reasoning_and_calls)
{
    static const struct expected all[] = {
        {GR_REASONING_APART, "hermes", "<think>a</think>b", "b", "a", "", SEVERAL},
        {GR_REASONING_INLINE, "hermes", "<think>a</think>b", "<think>\na\n</think>\n\nb", "", "",
         SEVERAL},
        {GR_REASONING_DROPPED, "hermes", "<think>a</think>b", "b", "", "", SEVERAL},
        {GR_REASONING_APART, NULL, "<think>a</think>b", "<think>a</think>b", "", "", SEVERAL},
        {GR_REASONING_APART, "hermes",
         "b<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"
         "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
         "b", "", "f({\"x\": 1});g({});", SEVERAL},
        {GR_REASONING_APART, "mistral",
         "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}, \"id\": \"abcdefghi\"}, "
         "{\"name\": \"g\", \"arguments\": {\"y\": 2}}]",
         "", "", "abcdefghi:f({\"x\": 1});g({\"y\": 2});", SEVERAL},
        {GR_REASONING_APART, "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": ",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": ", "", "", SEVERAL},
        {GR_REASONING_APART, "hermes",
         "b<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"
         "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>c",
         "bc", "", "f({\"x\": 1});", ONE},
        {GR_REASONING_APART, "mistral",
         "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}, \"id\": \"abcdefghi\"}, "
         "{\"name\": \"g\", \"arguments\": {\"y\": 2}}]",
         "", "", "abcdefghi:f({\"x\": 1});", ONE},
        {GR_REASONING_APART, "hermes",
         "<think>a</think>b <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>",
         "b <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>", "a", "", NONE},
        {GR_REASONING_APART, "functionary-v3.2", ">>>all\nb", "b", "", "", NONE},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (size_t size = 1; size < 200; size = 2 * size + 1)
            check(&all[i], size);
    }
}
