/* A call as a JSON object with a name and arguments, or a list of such objects. The arguments are
 * given as they come; objects with other members are no calls. */
#include <string.h>

#include "answer/answer.h"

static const struct {
    const char *name;
    enum gr_call_key key;
} member[] = {{"name", GR_KEY_NAME},
              {"tool_name", GR_KEY_NAME},
              {"arguments", GR_KEY_ARGUMENTS},
              {"parameters", GR_KEY_ARGUMENTS},
              {"id", GR_KEY_ID},
              {"tool_call_id", GR_KEY_ID},
              {"call_id", GR_KEY_ID},
              {"type", GR_KEY_TYPE},
              {"function", GR_KEY_FUNCTION},
              {"tool_call", GR_KEY_FUNCTION},
              {"tool_calls", GR_KEY_CALLS}};

static enum gr_call_key find_member(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof member / sizeof *member; i++)
        if (strlen(member[i].name) == n && !memcmp(member[i].name, name, n))
            return member[i].key;
    return GR_KEY_NONE;
}

/* Gives arguments, or lets them wait for the name. */
static void give_arguments(struct gr_answer *a, const char *p, size_t n)
{
    struct gr_call *k = &a->call;
    k->has_arguments = true;
    if (k->n_name) {
        gr_answer_begin_call(a);
        gr_answer_give(a, GR_ANSWER_ARGUMENTS, p, n);
    } else {
        int rc = gr_vec_append(&k->waiting, p, n, 1);
        a->rc = a->rc ? a->rc : rc;
    }
}

static bool set_name(struct gr_answer *a, const char *p, size_t n)
{
    struct gr_call *k = &a->call;
    if (k->n_name || !gr_call_copy(k->name, &k->n_name, p, n))
        return false;
    if (k->has_arguments) {
        gr_answer_begin_call(a);
        gr_answer_give(a, GR_ANSWER_ARGUMENTS, k->waiting.data, k->waiting.n);
    }
    k->waiting.n = 0;
    return true;
}

static bool set_id(struct gr_answer *a, const char *p, size_t n)
{
    struct gr_call *k = &a->call;
    if (k->n_id || !gr_call_copy(k->id, &k->n_id, p, n))
        return false;
    if (k->begun)
        gr_answer_give_id(a);
    return true;
}

/* Arguments as a string that contains JSON. */
static bool set_arguments(struct gr_answer *a, const char *p, size_t n)
{
    struct gr_json j = {0};
    int done = 0;
    if (a->call.has_arguments || !n || p[0] != '{')
        return false;
    for (size_t i = 0; i < n; i++) {
        done = done > 0 && gr_is_blank(p[i]) ? done : done ? -1 : gr_json_put(&j, p[i]);
        if (done < 0)
            return false;
    }
    if (done > 0)
        give_arguments(a, p, n);
    return done > 0;
}

/* A string of a call's object is complete: its text is in k->value, with the quotes. */
static bool take_string(struct gr_answer *a)
{
    struct gr_call *k = &a->call;
    bool fine = false;
    json_t *s = json_loadb(k->value.data, k->value.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const char *p = json_string_value(s);
    size_t n = json_string_length(s);
    if (!p || (k->level[k->json.depth] != '{' && !k->json.is_key))
        fine = false;
    else if (k->json.is_key)
        fine = (k->member = find_member(p, n)) != GR_KEY_NONE;
    else if (k->member == GR_KEY_NAME || k->member == GR_KEY_FUNCTION)
        fine = set_name(a, p, n);
    else if (k->member == GR_KEY_ID)
        fine = set_id(a, p, n);
    else
        fine =
            k->member == GR_KEY_TYPE || (k->member == GR_KEY_ARGUMENTS && set_arguments(a, p, n));
    json_decref(s);
    k->value.n = 0;
    return fine;
}

static void forget(struct gr_call *k)
{
    k->n_name = k->n_id = 0;
    k->name[0] = k->id[0] = 0;
    k->begun = k->has_arguments = false;
    k->waiting.n = 0;
}

/* Looks at a bracket that was opened, at its depth. */
static bool open_level(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    int32_t depth = k->json.depth;
    char around = depth > 1 ? k->level[depth - 1] : 0;
    if (around == '{' && k->member == GR_KEY_ARGUMENTS && c == '{') {
        if (k->has_arguments)
            return false;
        k->arguments_depth = depth;
        give_arguments(a, "{", 1);
        return true;
    }
    if (depth > GR_CALL_MAX_LEVEL)
        return false;
    bool calls = k->member == GR_KEY_CALLS && c == '[';
    bool inner = k->member == GR_KEY_FUNCTION && c == '{' && !k->n_name;
    if (around == '{' && !calls && !inner)
        return false;
    if (around == '[' && c != '{')
        return false;
    if (around == '{' && calls && (k->n_name || k->has_arguments))
        return false;
    if (around == '{' && calls)
        k->level[depth - 1] = 'w';
    if (around == 'w')
        return false;
    k->level[depth] = c;
    return true;
}

/* Looks at the bracket that was closed: a call within a call shares its name and arguments. */
static bool close_level(struct gr_answer *a)
{
    struct gr_call *k = &a->call;
    int32_t depth = k->json.depth + 1;
    char level = k->level[depth], around = depth > 1 ? k->level[depth - 1] : 0;
    if (level != '{' || around == '{')
        return true;
    if (!k->n_name)
        return false;
    if (!k->has_arguments)
        give_arguments(a, "{}", 2);
    k->n_calls++;
    forget(k);
    return true;
}

/* Looks at what a byte has changed outside of the arguments. */
static bool look(struct gr_answer *a, char c, enum gr_json_state was, int32_t depth)
{
    struct gr_call *k = &a->call;
    if (k->json.depth > depth)
        return open_level(a, c);
    if (k->json.depth < depth)
        return close_level(a);
    if (k->json.state == GR_AT_STRING && was != GR_AT_STRING && was < GR_AT_STRING)
        k->string = true;
    if (k->string) {
        int rc = gr_vec_append(&k->value, &c, 1, 1);
        a->rc = a->rc ? a->rc : rc;
        k->string = gr_json_in_string(&k->json);
        return k->string || take_string(a);
    }
    bool in_call = k->level[depth] == '{';
    if (was < GR_AT_STRING && k->json.state == GR_AT_WORD) /* null: as if it were not there */
        return in_call && c == 'n' && (k->member == GR_KEY_ARGUMENTS || k->member == GR_KEY_ID);
    return k->json.state != GR_AT_NUMBER || (in_call && k->member == GR_KEY_ID);
}

int gr_object_put(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    if (!k->entered) {
        k->json = (struct gr_json){0};
        k->value.n = 0;
    }
    k->entered = true;
    enum gr_json_state was = k->json.state;
    int32_t depth = k->json.depth;
    int done = gr_json_put(&k->json, c);
    if (done < 0)
        return -1;
    if (k->arguments_depth) {
        give_arguments(a, &c, 1);
        if (k->json.depth < k->arguments_depth)
            k->arguments_depth = 0;
        return 0;
    }
    if (!look(a, c, was, depth))
        return -1;
    return done && !k->n_calls ? -1 : done;
}
