/* --dump-plan: what is printed of the plans of a prompt and of its text. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

/* Checks the plan that begins with `head`: as many lines of nodes as it says, and every value
 * within the CPU's memory. Returns the text after its head, NULL when there is no such plan. */
static const char *expect_plan(const char *text, const char *head)
{
    const char *at = strstr(text, head);
    int n_node = 0, n_line = 0;
    long bytes = 0, k = 0;
    cr_expect_not_null(at, "no '%s' in: %s", head, text);
    if (!at)
        return NULL;
    at += strlen(head);
    const char *end = strstr(at, "\nplan of"), *memory = strstr(at, "memory: CPU ");
    cr_assert(sscanf(strchr(at, '\n') + 1, "%d nodes in ", &n_node) == 1 && memory, "%s", at);
    cr_expect(sscanf(memory, "memory: CPU %ld bytes", &bytes) == 1 && bytes > 0, "%s", memory);
    for (const char *line = at; line && (!end || line < end); line = strchr(line + 1, '\n')) {
        n_line += sscanf(line, "\n%ld", &k) == 1 && k == n_line && line[1] == ' ';
        const char *place = strchr(line, '@');
        cr_expect(!place || atol(place + 1) < bytes, "%.200s", line);
    }
    cr_expect_eq(n_line, n_node, "%d lines of %d nodes: %s", n_line, n_node, at);
    return at;
}

/* The prompt's plan, then the one of single tokens; the text is the same, and a warm-up is not run.
 */
Test(plan, of_a_prompt_and_of_its_text)
{
    char model[256];
    snprintf(model, sizeof model, "%s", tiny_model(false));
    struct outcome plain = GPURUN(NULL, model, "-p", "abcd", "-n", "4", "--temp", "0",
                                  "--ignore-eos", "-q"),
                   o = GPURUN(NULL, model, "-p", "abcd", "-n", "4", "--temp", "0", "--ignore-eos",
                              "-q", "--dump-plan");
    cr_expect_eq(o.exit_code, 0);
    cr_expect_str_eq(o.out, plain.out);
    const char *head = "plan of a micro-batch, run 1 time: n_tok ";
    cr_expect_eq(strstr(o.err, head), o.err, "%s", o.err);
    const char *prompt = expect_plan(o.err, head);
    cr_expect(prompt && strstr(prompt, " attn ") && strstr(prompt, " layer 0 "), "%s", prompt);
    cr_expect_not_null(
        expect_plan(prompt, "\nplan of a micro-batch, run 3 times: n_tok 1, n_out 1"));
    o = GPURUN(NULL, model, "-p", "abcd", "-n", "1", "--temp", "0", "-q", "--dump-plan");
    cr_expect_null(strstr(o.err + 1, "\nplan of"), "what has been printed is not again: %s", o.err);
}

Test(plan, of_a_context_that_is_shifted)
{
    struct outcome o = GPURUN(NULL, tiny_model(false), "-p", "ab", "-c", "256", "-n", "300",
                              "--ignore-eos", "--context-shift", "-q", "--dump-plan");
    cr_expect_eq(o.exit_code, 0);
    cr_expect(strstr(o.err, "plan of a K-shift, run 1 time"), "%s", o.err);
}

Test(plan, of_the_first_of_two_ranks)
{
    struct outcome o = GPURUN(NULL, tiny_model(false), "-p", "abcd", "-n", "2", "-q", "--dump-plan",
                              "--ranks", "2", "-dev", "cpu");
    cr_expect_eq(o.exit_code, 0);
    const char *plan = expect_plan(o.err, "plan of a micro-batch, run 1 time: n_tok ");
    cr_expect(plan && strstr(plan, "\nstage 0 of 2, out "), "%s", o.err);
}

Test(plan, of_an_encoder)
{
    struct outcome o =
        GPURUN(NULL, tiny_encoder_decoder(), "-p", "abcd", "-n", "2", "-q", "--dump-plan");
    cr_expect_eq(o.exit_code, 0, "%s", o.err);
    cr_expect_not_null(
        expect_plan(o.err, "plan of a micro-batch of the encoder, run 1 time: n_tok "));
}

Test(plan, of_a_recorded_session)
{
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_path("s.json"));
    FILE *f = fopen(path, "w");
    cr_assert(f &&
              fputs("{\"context\": {\"n_ctx\": 256}, \"ops\": [{\"op\": \"decode\", \"tokens\": "
                    "[1, 70], \"pos\": [0, 1], \"seq\": [[0], [0]], \"logits\": [0, 1]}]}",
                    f) >= 0 &&
              fclose(f) == 0);
    struct outcome o =
        GPURUN(NULL, "replay", path, "-m", tiny_model(false), "--hash", "-q", "--dump-plan");
    cr_expect_eq(o.exit_code, 0);
    cr_expect_eq(strstr(o.err, "op 0:\nplan of a micro-batch, run 1 time: n_tok 2,"), o.err, "%s",
                 o.err);
}
