// What isa_objects.sh must find: a shared inline function compiled with -mavx2.
inline __attribute__((noinline)) void shared_inline_function(float* x, int count) {
  for (int i = 0; i < count; ++i) x[i] = x[i] * 2.0f + 1.0f;
}
void use_shared_inline_function(float* x, int count) { shared_inline_function(x, count); }
