/* Reads recorded sessions. */
#include "session.h"

#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "session_params.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/json.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"

/* Place of an error in the file: "session.json: op 3: ..." */
struct place {
    const char *path;
    int op; /* -1: not in an operation */
};

static int wrong(const struct place *at, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static int wrong(const struct place *at, const char *fmt, ...)
{
    char what[512], op[32] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (at->op >= 0)
        snprintf(op, sizeof op, "op %d: ", at->op);
    gr_say_error("%s: %s%s", at->path, op, what);
    return GR_EXIT_USAGE;
}

static const char *type_name(const json_t *j)
{
    static const char *const names[] = {"an object", "a list", "a string", "an integer",
                                        "a number",  "true",   "false",    "null"};
    return j ? names[json_typeof(j)] : "nothing";
}

/* Reads an integer (or true, false) in [lo, hi]. */
static int get_integer(const struct place *at, const json_t *j, const char *name, json_int_t lo,
                       json_int_t hi, json_int_t *out)
{
    if (!json_is_integer(j) && !json_is_boolean(j))
        return wrong(at, "%s: an integer expected, %s found", name, type_name(j));
    json_int_t v = json_is_integer(j) ? json_integer_value(j) : json_is_true(j);
    if (v < lo || v > hi)
        return wrong(at, "%s: %lld to %lld expected, %lld found", name, (long long)lo,
                     (long long)hi, (long long)v);
    *out = v;
    return 0;
}

/* The same within the range of int32_t. */
static int get_int(const struct place *at, const json_t *j, const char *name, int32_t lo,
                   int32_t hi, int32_t *out)
{
    json_int_t v = 0;
    int rc = get_integer(at, j, name, lo, hi, &v);
    *out = (int32_t)v;
    return rc;
}

/* ---- context ---- */

static const struct gr_session_param params_list[] = GR_SESSION_PARAM_ROWS;

static int set_scaling(const struct place *at, const json_t *j, enum gr_rope_scaling *out)
{
    if (json_is_string(j) && gr_scaling_named(json_string_value(j), out) &&
        *out != GR_SCALING_MODEL)
        return 0;
    return wrong(at, "rope_scaling: none, linear, yarn or longrope expected, %s found",
                 json_is_string(j) ? json_string_value(j) : type_name(j));
}

static int set_pooling(const struct place *at, const json_t *j, enum gr_pooling *out)
{
    if (json_is_string(j) && gr_pooling_named(json_string_value(j), out) &&
        *out != GR_POOLING_MODEL)
        return 0;
    return wrong(at, "pooling: none, mean, cls, last or rank expected, %s found",
                 json_is_string(j) ? json_string_value(j) : type_name(j));
}

static int set_type(const struct place *at, const json_t *j, const char *name, char out[8])
{
    const char *word = json_is_string(j) ? json_string_value(j) : "";
    size_t n = strlen(word);
    for (const char *p = GR_CACHE_TYPES; n; p += strcspn(p, "|") + 1) {
        if (strcspn(p, "|") == n && !memcmp(p, word, n)) {
            snprintf(out, 8, "%s", word);
            return 0;
        }
        if (!p[strcspn(p, "|")])
            break;
    }
    return wrong(at, "%s: one of " GR_CACHE_TYPES " expected, %s found", name,
                 json_is_string(j) ? word : type_name(j));
}

static int set_number(struct gr_recording *r, const struct place *at,
                      const struct gr_session_param *q, const json_t *j)
{
    if (!json_is_number(j))
        return wrong(at, "%s: a number expected, %s found", q->name, type_name(j));
    gr_session_param_set(&r->params, q, json_number_value(j));
    return 0;
}

static int set_integer(struct gr_recording *r, const struct place *at,
                       const struct gr_session_param *q, const json_t *j)
{
    json_int_t v = 0;
    int rc = get_integer(at, j, q->name, (json_int_t)q->lo, (json_int_t)q->hi, &v);
    if (!rc)
        gr_session_param_set(&r->params, q, (double)v);
    return rc;
}

/* Checks the value of a key that is no parameter: causal can only be 1; flash_attn, 0 or 1, has no
 * effect. */
static int check_other(const struct place *at, const char *name, const json_t *j)
{
    int32_t v = 0;
    bool causal = !strcmp(name, "causal");
    if (!causal && strcmp(name, "flash_attn") != 0)
        return wrong(at, "context: unknown key '%.40s'", name);
    int rc = get_int(at, j, name, 0, 1, &v);
    if (!rc && causal && !v)
        rc = wrong(at, "causal 0: attention that is not causal is not in this version");
    return rc;
}

static int set_key(struct gr_recording *r, const struct place *at, const char *name,
                   const json_t *j)
{
    if (!strcmp(name, "type_k"))
        return set_type(at, j, name, r->type_k);
    if (!strcmp(name, "type_v"))
        return set_type(at, j, name, r->type_v);
    if (!strcmp(name, "rope_scaling"))
        return set_scaling(at, j, &r->params.rope_scaling);
    if (!strcmp(name, "pooling"))
        return set_pooling(at, j, &r->params.pooling);
    for (size_t i = 0; i < sizeof params_list / sizeof *params_list; i++) {
        const struct gr_session_param *q = &params_list[i];
        if (q->in_file && !strcmp(q->name, name))
            return q->kind == GR_PARAM_F32 ? set_number(r, at, q, j) : set_integer(r, at, q, j);
    }
    return check_other(at, name, j);
}

static int read_context(struct gr_recording *r, const struct place *at, json_t *context)
{
    const char *name;
    json_t *value;
    r->params = gr_session_params_default();
    r->params.n_ctx = 256, r->params.n_batch = 512, r->params.n_seq_max = 1;
    strcpy(r->type_k, "f16"), strcpy(r->type_v, "f16");
    if (context && !json_is_object(context))
        return wrong(at, "context: an object expected, %s found", type_name(context));
    r->params.n_ubatch = 0;
    json_object_foreach(context, name, value)
    {
        int rc = set_key(r, at, name, value);
        if (rc)
            return rc;
    }
    if (!r->params.n_ubatch)
        r->params.n_ubatch = r->params.n_batch;
    r->params.type_k = r->type_k, r->params.type_v = r->type_v;
    return 0;
}

/* ---- operations ---- */

static const struct {
    const char *name, *field[4];
} specs[GR_N_OPS] = {
#define OP(name, a, b, c, d) {#name, {a, b, c, d}},
    GR_SESSION_OPS(OP)
#undef OP
};

/* A list of n items (any number for n < 0). */
static int get_list(const struct place *at, const json_t *op, const char *name, long n,
                    const json_t **out)
{
    const json_t *list = json_object_get(op, name);
    if (!json_is_array(list))
        return wrong(at, "%s: a list expected, %s found", name, type_name(list));
    if (n >= 0 && json_array_size(list) != (size_t)n)
        return wrong(at, "%s: %ld items expected, as in tokens, %zu found", name, n,
                     json_array_size(list));
    *out = list;
    return 0;
}

static int get_ints(const struct place *at, const json_t *list, const char *name, int32_t *out)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++)
        rc = get_int(at, json_array_get(list, i), name, INT32_MIN, INT32_MAX, &out[i]);
    return rc;
}

/* Counts the sequence ids of all tokens. */
static int count_ids(const struct place *at, const json_t *seq, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < json_array_size(seq); i++) {
        const json_t *ids = json_array_get(seq, i);
        if (!json_is_array(ids))
            return wrong(at, "seq: a list of sequences for each token expected, %s found",
                         type_name(ids));
        *n += json_array_size(ids);
    }
    return 0;
}

/* The four lists of a batch, in one allocation: tokens, positions, counts, sequence ids, wanted
 * logits. */
static int read_batch(struct gr_recorded_op *o, const struct place *at, const json_t *op)
{
    const json_t *tokens = NULL, *pos = NULL, *seq = NULL, *logits = NULL;
    size_t n, n_ids;
    int rc = get_list(at, op, "tokens", -1, &tokens);
    n = json_array_size(tokens);
    if (rc || (rc = get_list(at, op, "pos", (long)n, &pos)) ||
        (rc = get_list(at, op, "seq", (long)n, &seq)) ||
        (rc = get_list(at, op, "logits", (long)n, &logits)) || (rc = count_ids(at, seq, &n_ids)))
        return rc;
    if (n > INT32_MAX / 8 || n_ids > INT32_MAX / 8)
        return wrong(at, "tokens: fewer than %d expected, %zu found", INT32_MAX / 8, n);
    int32_t *m = o->memory = calloc(4 * n + n_ids + 1, sizeof *m);
    if (!m)
        return gr_say_no_memory();
    int32_t *want = m + 3 * n, *ids = m + 4 * n;
    int8_t *flags = (int8_t *)want; /* narrowed in place: item i never overtakes item i of want */
    if ((rc = get_ints(at, tokens, "tokens", m)) || (rc = get_ints(at, pos, "pos", m + n)) ||
        (rc = get_ints(at, logits, "logits", want)))
        return rc;
    for (size_t i = 0; i < n; i++)
        flags[i] = want[i] != 0;
    for (size_t i = 0, k = 0; i < n && !rc; k += (size_t)m[2 * n + i++]) {
        m[2 * n + i] = (int32_t)json_array_size(json_array_get(seq, i));
        rc = get_ints(at, json_array_get(seq, i), "seq", ids + k);
    }
    o->batch = (struct gr_batch){.n_tok = (int32_t)n,
                                 .token = m,
                                 .pos = m + n,
                                 .n_seq = m + 2 * n,
                                 .seq = ids,
                                 .logits = flags};
    return rc;
}

static int read_op(struct gr_recorded_op *o, const struct place *at, const json_t *op)
{
    const char *name = json_string_value(json_object_get(op, "op"));
    if (!name)
        return wrong(at, "an object with the name of an operation in \"op\" expected, %s found",
                     json_is_object(op) ? "none" : type_name(op));
    for (int k = 0; k < GR_N_OPS; k++) {
        if (strcmp(name, specs[k].name) != 0)
            continue;
        o->kind = (enum gr_op_kind)k;
        int rc = k == GR_OP_decode || k == GR_OP_encode ? read_batch(o, at, op) : 0;
        for (int i = 0; i < 4 && specs[k].field[i] && !rc; i++)
            rc = get_int(at, json_object_get(op, specs[k].field[i]), specs[k].field[i], INT32_MIN,
                         INT32_MAX, &o->arg[i]);
        bool slot = k == GR_OP_state_save || k == GR_OP_state_load;
        if (!rc && slot && (o->arg[0] < 0 || o->arg[0] >= GR_SESSION_SLOTS))
            return wrong(at, "slot: 0 to %d expected, %d found", GR_SESSION_SLOTS - 1, o->arg[0]);
        return rc;
    }
    return wrong(at, "unknown operation '%.40s'", name);
}

static int read_ops(struct gr_recording *r, struct place *at, const json_t *ops)
{
    if (!json_is_array(ops))
        return wrong(at, "ops: a list expected, %s found", type_name(ops));
    r->op = calloc(json_array_size(ops) + 1, sizeof *r->op);
    if (!r->op)
        return gr_say_no_memory();
    int rc = 0;
    for (size_t i = 0; i < json_array_size(ops) && !rc; i++) {
        at->op = r->n_op++;
        rc = read_op(&r->op[i], at, json_array_get(ops, i));
    }
    at->op = -1;
    return rc;
}

/* The model's path is relative to the session's folder. */
static int read_model(struct gr_recording *r, const struct place *at, const json_t *model)
{
    if (!model)
        return 0;
    if (!json_is_string(model))
        return wrong(at, "model: a string expected, %s found", type_name(model));
    const char *name = json_string_value(model),
               *slash = *name == '/' ? NULL : strrchr(at->path, '/');
    int n = slash ? (int)(slash - at->path) + 1 : 0;
    if (asprintf(&r->model, "%.*s%s", n, at->path, name) < 0) {
        r->model = NULL;
        return gr_say_no_memory();
    }
    return 0;
}

static json_t *parse(const struct place *at, const char *text, size_t n, int *rc)
{
    json_error_t e;
    gr_json_begin();
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        *rc = gr_json_starved() ? gr_say_no_memory()
                                : wrong(at, "line %d, column %d: %s", e.line, e.column, e.text);
    return root;
}

int gr_recording_read(struct gr_recording *r, const char *path)
{
    struct place at = {path, -1};
    char *text;
    size_t n;
    *r = (struct gr_recording){0};
    int rc = gr_read_all(path, &text, &n);
    if (rc)
        return rc;
    json_t *root = parse(&at, text, n, &rc);
    free(text);
    if (root && !json_is_object(root))
        rc = wrong(&at, "an object expected, %s found", type_name(root));
    if (!rc)
        rc = read_model(r, &at, json_object_get(root, "model"));
    if (!rc)
        rc = read_context(r, &at, json_object_get(root, "context"));
    if (!rc)
        rc = read_ops(r, &at, json_object_get(root, "ops"));
    json_decref(root);
    return rc;
}

void gr_recording_fini(struct gr_recording *r)
{
    for (int i = 0; i < r->n_op; i++)
        free(r->op[i].memory);
    free(r->op);
    free(r->model);
    *r = (struct gr_recording){0};
}
