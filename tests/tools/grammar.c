/* gpurun run with a grammar or a JSON schema. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tiny.h"

TestSuite(grammar, .timeout = 120);

#define STORY "-m", GR_SOURCE_DIR "/tools/default-model.gguf", "-t", "1", "-p", "Once", "-s", "4"

static const char *write_file(const char *name, const char *text)
{
    const char *path = tiny_path(name);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    return path;
}

Test(grammar, the_text_is_what_the_grammar_allows)
{
    const char *text = "root ::= \" a \" (\"cat\" | \"dog\") \" of \" [1-9] \".\"";
    const char *path = write_file("pet.gbnf", text);
    struct outcome a = GPURUN(NULL, STORY, "--grammar", text);
    struct outcome b = GPURUN(NULL, STORY, "--grammar-file", path);
    struct outcome c = GPURUN(text, STORY, "--grammar-file", "-");
    expect_exit(a, 0, "gen ");
    cr_expect_str_eq(a.out, b.out);
    cr_expect_str_eq(a.out, c.out);
    cr_expect(a.n_out == 12 && !strncmp(a.out, " a ", 3) && !strncmp(a.out + 6, " of ", 4), "'%s'",
              a.out);
}

Test(grammar, the_text_is_valid_by_the_schema)
{
    const char *schema =
        "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", "
        "\"maxLength\": 12}, \"age\": {\"type\": \"integer\", \"minimum\": 3, "
        "\"maximum\": 120}, \"kind\": {\"enum\": [\"cat\", \"dog\"]}}, "
        "\"required\": [\"name\", \"age\", \"kind\"], \"additionalProperties\": false}";
    struct outcome a = GPURUN(NULL, STORY, "-j", schema);
    struct outcome b = GPURUN(NULL, STORY, "-jf", write_file("schema.json", schema));
    expect_exit(a, 0, "gen ");
    cr_expect_str_eq(a.out, b.out);
    json_t *v = json_loads(a.out, 0, NULL);
    cr_assert(v, "'%s'", a.out);
    json_int_t age = json_integer_value(json_object_get(v, "age"));
    cr_expect(age >= 3 && age <= 120 && json_object_size(v) == 3, "%s", a.out);
    cr_expect(json_is_string(json_object_get(v, "name")) &&
              json_is_string(json_object_get(v, "kind")));
    json_decref(v);
}

Test(grammar, what_is_wrong_is_wrong_usage)
{
    expect_exit(GPURUN(NULL, STORY, "--grammar", "root ::= [a-"), 2,
                "--grammar: grammar, line 1, column 10: this class has no closing ]");
    expect_exit(GPURUN(NULL, STORY, "--grammar-file", write_file("bad.gbnf", "root ::= x\n")), 2,
                "--grammar-file: grammar, line 1, column 10: rule 'x' is not defined");
    expect_exit(GPURUN(NULL, STORY, "-j", "{\"type\": 3}"), 2, "-j: JSON schema, at '/type'");
    expect_exit(GPURUN(NULL, STORY, "-jf", write_file("bad.json", "{\"not\": {}}")), 2,
                "-jf: JSON schema, at '/not': not is not supported");
    expect_exit(GPURUN(NULL, STORY, "--grammar-file", "nowhere"), 6, "cannot read 'nowhere'");
    expect_exit(GPURUN(NULL, STORY, "--grammar", "a", "-j", "{}"), 2, "both say what may be");
    expect_exit(GPURUN(NULL, STORY, "--grammar", "a", "--ignore-eos"), 2, "when the text ends");
}
