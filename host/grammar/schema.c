#include "grammar/schema.h"
#include "gr/status.h"
int gr_schema_read(struct gr_rules *rules, const char *text, size_t n){(void)rules;(void)text;(void)n;return gr_fail(GR_E_INVALID,"x");}
int gr_grammar_from_schema(struct gr_grammar **out, const char *text, size_t n,
                           const struct gr_token_trie *trie){(void)trie;*out=NULL;return gr_schema_read(NULL,text,n);}
