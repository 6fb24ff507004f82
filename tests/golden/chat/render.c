/* Renders templates for scripts/compare/templates. Standard input has records: a letter, a blank, a
 * length, a newline, and that many bytes: T, a template; C, a context for it. Each context is
 * answered by a record of the same form: O, the text; E, the error's message. Time stands still at
 * 2024-07-26 12:00:00 UTC. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "gr/status.h"

static void answer(char kind, const char *p, size_t n)
{
    printf("%c %zu\n", kind, n);
    fwrite(p, 1, n, stdout);
    fflush(stdout);
}

int main(void)
{
    struct gr_template *program = NULL;
    char kind, why[2048] = "no template";
    size_t n;
    while (scanf("%c %zu", &kind, &n) == 2 && getchar() == '\n') {
        char *text = malloc(n + 1);
        if (!text || fread(text, 1, n, stdin) != n)
            return 1;
        struct gr_prompt out = {0};
        if (kind == 'T') {
            gr_template_free(&program);
            if (gr_template_new(&program, text, n))
                snprintf(why, sizeof why, "%s", gr_error());
        } else if (!program) {
            answer('E', why, strlen(why));
        } else if (gr_template_render(program, text, n, 1721995200, &out)) {
            answer('E', gr_error(), strlen(gr_error()));
        } else {
            answer('O', out.text, out.n);
        }
        gr_prompt_free(&out);
        free(text);
    }
    gr_template_free(&program);
    return 0;
}
