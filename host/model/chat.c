/* Chat templates of models: the part of gpurun.h over host/chat that needs a vocabulary. */
#include <string.h>

#include "base/alloc.h"
#include "chat/known.h"
#include "gr/status.h"
#include "model/model.h"

/* Returns whether all of these tokens, with blanks between them, are control tokens of v, or
 * matched as a whole in a text. */
static bool has_tokens(const struct gr_vocab *v, const char *tokens)
{
    bool all = *tokens != 0;
    while (*tokens && all) {
        size_t n = strcspn(tokens, " ");
        int32_t id = gr_vocab_find(v, tokens, n);
        enum gr_token_type type = gr_vocab_type(v, id);
        all = id >= 0 && (type == GR_TOKEN_CONTROL || type == GR_TOKEN_USER_DEFINED);
        tokens += n + (tokens[n] == ' ');
    }
    return all;
}

int gr_model_template(const struct gr_model *model, const char **text, size_t *n,
                      const char **known)
{
    struct gr_str s;
    *text = *known = NULL, *n = 0;
    if (gr_gguf_find(model->gguf, "tokenizer.chat_template")) {
        int rc = gr_gguf_str(model->gguf, "tokenizer.chat_template", &s);
        if (!rc)
            *text = s.p, *n = s.n;
        return rc;
    }
    const struct gr_known *k;
    for (int32_t i = 0; (k = gr_known_template(i)); i++) {
        if (has_tokens(model->vocab, k->tokens)) {
            *text = k->text, *n = strlen(k->text), *known = k->name;
            return 0;
        }
    }
    return gr_fail(GR_E_TEMPLATE,
                   "the model file has no chat template, and its vocabulary has the tokens of no "
                   "known one: --chat-template NAME chooses one (chatml, llama3, ..), "
                   "--chat-template-file FILE reads one");
}

/* Puts BOS before the ids. */
static int prepend(struct gr_vec *ids, int32_t bos)
{
    int rc = gr_vec_append(ids, &bos, 1, sizeof bos);
    int32_t *id = ids->data;
    if (!rc) {
        memmove(id + 1, id, (ids->n - 1) * sizeof *id);
        id[0] = bos;
    }
    return rc;
}

int gr_prompt_tokenize(const struct gr_model *model, const struct gr_prompt *prompt, int32_t **ids,
                       size_t *n_ids)
{
    const struct gr_vocab *v = model->vocab;
    struct gr_vec out = {0};
    int32_t bos = gr_vocab_adds_bos(v) ? gr_vocab_bos(v) : -1;
    int rc = gr_tokenize_parts(v, prompt->text ? prompt->text : "", prompt->n, false, prompt->input,
                               prompt->n_input, &out);
    if (!rc && bos >= 0 && (!out.n || *(int32_t *)out.data != bos))
        rc = prepend(&out, bos);
    if (!rc && !out.data && !(out.data = gr_calloc(1, sizeof **ids)))
        rc = GR_E_NOMEM_HOST;
    if (rc)
        gr_vec_fini(&out);
    *ids = out.data, *n_ids = out.n;
    return rc;
}
