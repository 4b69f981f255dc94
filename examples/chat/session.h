/* session.h: the language model that chat.h and chat.o were compiled from, as a function of a text that grows. */
#ifndef SESSION_H
#define SESSION_H

#include <stdint.h>

#include "chat.h"

enum { SESSION_VOCABULARY = CHAT_OUTPUT_LOGITS_DIM2 };

typedef struct session session;

/* An empty text of at most `context` tokens, computed on `threads` threads, 0: one per processor. Ends the program where
 * there is too little memory, as the functions below do where the model fails. */
session *session_open(int64_t context, int64_t threads);
void session_close(session *session);

/* Tokens that the text has. */
int64_t session_length(const session *session);

/* Appends `count` tokens, at least one, and returns the logits of the next one, f32[SESSION_VOCABULARY], until the next
 * call. */
const float *session_feed(session *session, const int64_t *tokens, int64_t count);

/* Makes the text empty. */
void session_forget(session *session);

#endif
