/* Known templates, and their part of gpurun.h. */
#include "chat/known.h"

#include "base/checked.h"
#include "gpurun.h"

/* The content of a message, or the texts of its parts. */
#define CONTENT                                                                                    \
    "{% macro t(m) %}{% if m.content is string %}{{ m.content }}{% elif m.content is sequence %}"  \
    "{% for p in m.content if p.text is string %}{{ p.text }}{% endfor %}{% endif %}{% endmacro "  \
    "%}"

static const struct gr_known known[] = {
#define KNOWN(name, tokens, text) {name, tokens, CONTENT text},
#include "chat/known.def"
#undef KNOWN
};

const struct gr_known *gr_known_template(int32_t i)
{
    return i >= 0 && (size_t)i < GR_COUNT(known) ? &known[i] : NULL;
}

const char *gr_template_known(int32_t i, const char **text)
{
    const struct gr_known *k = gr_known_template(i);
    if (text)
        *text = k ? k->text : NULL;
    return k ? k->name : NULL;
}
