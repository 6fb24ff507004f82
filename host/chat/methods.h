/* Functions of methods; str_methods.c has those of strings. */
#ifndef GR_CHAT_METHODS_H
#define GR_CHAT_METHODS_H

#include "chat/value.h"

#define METHOD(type, name, fn, params) gr_native_fn gr_method_##fn;
#include "chat/methods.def"
#undef METHOD

#endif
