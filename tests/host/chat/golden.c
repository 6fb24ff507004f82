/* What jinja2 makes of templates, and llama.cpp's known templates; tests/golden/chat/make.py wrote
 * both. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpurun.h"
#include "gr/status.h"

#define NOW 1721995200 /* 2024-07-26 12:00:00 UTC */

static json_t *golden(void)
{
    json_error_t e;
    json_t *j =
        json_load_file(GR_SOURCE_DIR "/tests/golden/chat/templates.json", JSON_ALLOW_NUL, &e);
    cr_assert(j, "%s", e.text);
    setenv("TZ", "UTC", 1);
    tzset();
    return j;
}

static int render(const char *text, size_t n, const char *context, struct gr_prompt *prompt)
{
    struct gr_template *t = NULL;
    *prompt = (struct gr_prompt){0};
    int rc = gr_template_new(&t, text, n);
    if (!rc)
        rc = gr_template_render(t, context, strlen(context), NOW, prompt);
    gr_template_free(&t);
    return rc;
}

Test(golden, templates_as_jinja2_renders_them, .timeout = 60)
{
    json_t *j = golden(), *c;
    size_t i, n = 0;
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        json_t *t = json_object_get(c, "template"), *want = json_object_get(c, "text");
        struct gr_prompt p;
        int rc = render(json_string_value(t), json_string_length(t),
                        json_string_value(json_object_get(c, "context")), &p);
        if (json_is_null(want))
            cr_expect(rc == GR_E_TEMPLATE && !p.text, "no error: %s\n%s", json_string_value(t),
                      p.text);
        else
            cr_expect(!rc && p.n == json_string_length(want) &&
                          !memcmp(p.text, json_string_value(want), p.n),
                      "%s\nours: %s\ntheirs: %s", json_string_value(t),
                      rc ? gr_error_message() : p.text, json_string_value(want));
        gr_prompt_free(&p);
        n++;
    }
    cr_expect_geq(n, 400);
    json_decref(j);
}

static const char *known(const char *name)
{
    const char *k, *text;
    for (int32_t i = 0; (k = gr_template_known(i, &text)); i++) {
        if (!strcmp(k, name))
            return text;
    }
    return "";
}

Test(golden, known_templates_as_llama_cpp_has_them, .timeout = 60)
{
    json_t *j = golden(), *c;
    size_t i, n = 0;
    json_array_foreach(json_object_get(j, "known"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name")), *text = known(name);
        const char *want = json_string_value(json_object_get(c, "text"));
        json_t *context = json_pack("{s:O, s:O}", "messages", json_object_get(j, "messages"),
                                    "add_generation_prompt", json_object_get(c, "add"));
        char *json = json_dumps(context, 0);
        struct gr_prompt p;
        int rc = render(text, strlen(text), json, &p);
        cr_expect(!rc && !strcmp(p.text, want), "%s\nours: %s\ntheirs: %s", name,
                  rc ? gr_error_message() : p.text, want);
        gr_prompt_free(&p);
        free(json);
        json_decref(context);
        n++;
    }
    int32_t count = 0;
    while (gr_template_known(count, NULL))
        count++;
    cr_expect_eq(n, 2 * (size_t)count, "every known template, twice: %zu, %d", n, count);
    json_decref(j);
}
