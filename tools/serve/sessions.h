/* Sessions: the scheduler's conversations as clients name them, by a word that cannot be guessed.
 * They belong to who has opened them. Each has one request or change at a time. */
#ifndef GR_TOOLS_SESSIONS_H
#define GR_TOOLS_SESSIONS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct gr_chat_session;
struct gr_exchange;
struct gr_server;
struct gr_sessions;

int gr_sessions_new(struct gr_sessions **out); /* a status */
/* Closes those that nothing has used for --session-ttl. */
void gr_sessions_expire(struct gr_server *server);
/* After gr_scheduler_free. */
void gr_sessions_free(struct gr_sessions **s);

/* Takes the session that a request names for it; NULL: it names none. Returns false after a refusal
 * (400, 404, 409). */
bool gr_chat_session_take(struct gr_exchange *x, struct gr_server *server, const json_t *request,
                          struct gr_chat_session **out);
/* Its number at the scheduler, and the tokens of its text. */
uint64_t gr_chat_session_conversation(const struct gr_chat_session *c);
int32_t gr_chat_session_length(const struct gr_chat_session *c);
/* Gives it back with a text of n tokens; -1: its text is as it was. */
void gr_chat_session_return(struct gr_chat_session **c, int32_t n);

#endif
