/* Members of values: items and attributes. */
#include "base/checked.h"
#include "chat/run.h"

struct gr_val gr_undefined_member(struct gr_render *r, struct gr_val owner, struct gr_val name)
{
    struct gr_text t = {0};
    bool text = gr_is_str(name);
    if (!text)
        gr_put_repr(r, &t, name);
    return gr_undefined_value(r, (struct gr_undefined){.owner = gr_type_name(owner),
                                                       .name = text  ? name.str->p
                                                               : t.n ? t.p
                                                                     : "",
                                                       .n = text ? name.str->n : t.n,
                                                       .number = !text});
}

static struct gr_val loop_attribute(struct gr_render *r, const struct gr_loop *l,
                                    struct gr_val name, struct gr_val self)
{
    const struct gr_list *items = l->items;
    int64_t at = (int64_t)l->at, n = (int64_t)items->n;
    struct {
        const char *name;
        struct gr_val value;
    } numbers[] = {{"index", gr_int(at)},
                   {"index0", gr_int(at - 1)},
                   {"revindex", gr_int(n - at + 1)},
                   {"revindex0", gr_int(n - at)},
                   {"first", gr_bool(at == 1)},
                   {"last", gr_bool(at == n)},
                   {"length", gr_int(n)},
                   {"depth", gr_int(1)},
                   {"depth0", gr_int(0)}};
    for (size_t i = 0; i < GR_COUNT(numbers); i++) {
        if (gr_val_is(name, numbers[i].name))
            return numbers[i].value;
    }
    if (gr_val_is(name, "previtem"))
        return at > 1 ? items->v[at - 2] : gr_undefined_name(r, "there is no previous item", 25);
    if (gr_val_is(name, "nextitem"))
        return at < n ? items->v[at] : gr_undefined_name(r, "there is no next item", 21);
    struct gr_val method = r->find_method(r, self, name.str->p, name.str->n);
    return gr_is_given(method) ? method : gr_undefined_member(r, self, name);
}

/* The attribute of an object that is no item: a method, or one of a namespace or a loop. */
static struct gr_val own_attribute(struct gr_render *r, struct gr_val obj, struct gr_val name)
{
    if (obj.type == GR_VAL_NAMESPACE) {
        const struct gr_pair *p = gr_dict_find(r, obj.dict, name);
        return p ? p->value : (struct gr_val){.type = GR_VAL_ABSENT};
    }
    if (obj.type == GR_VAL_LOOP)
        return loop_attribute(r, obj.loop, name, obj);
    if (obj.type == GR_VAL_MACRO && gr_val_is(name, "name"))
        return gr_str_view(r, obj.macro->name.p, obj.macro->name.n, NULL);
    return r->find_method(r, obj, name.str->p, name.str->n);
}

/* obj[key] without attributes; absent: there is no such item. */
static struct gr_val own_item(struct gr_render *r, struct gr_val obj, struct gr_val key)
{
    struct gr_val none = {.type = GR_VAL_ABSENT};
    if (obj.type == GR_VAL_DICT) {
        if (key.type == GR_VAL_LIST || key.type == GR_VAL_DICT)
            return none;
        const struct gr_pair *p = gr_dict_find(r, obj.dict, key);
        return p ? p->value : none;
    }
    if (!gr_is_int(key) || (!gr_is_str(obj) && !gr_is_sequence(obj) && obj.type != GR_VAL_RANGE))
        return none;
    if (gr_is_str(obj))
        gr_render_step(r, obj.str->n / 256);
    int64_t n = gr_length(obj), i = gr_int_of(key);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return none;
    if (obj.type == GR_VAL_RANGE)
        return gr_int(obj.range->start + i * obj.range->step);
    return gr_is_str(obj) ? gr_slice(r, obj, gr_int(i), gr_int(i + 1), gr_none()) : obj.list->v[i];
}

struct gr_val gr_attribute(struct gr_render *r, struct gr_val obj, struct gr_val name)
{
    if (obj.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, obj);
    struct gr_val v = own_attribute(r, obj, name);
    if (!gr_is_given(v))
        v = own_item(r, obj, name);
    return gr_is_given(v) ? v : gr_undefined_member(r, obj, name);
}

struct gr_val gr_item(struct gr_render *r, struct gr_val obj, struct gr_val key)
{
    if (obj.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, obj);
    struct gr_val v = own_item(r, obj, key);
    if (!gr_is_given(v) && gr_is_str(key))
        v = own_attribute(r, obj, key);
    return gr_is_given(v) ? v : gr_undefined_member(r, obj, key);
}
