// The end of what target_*-inl.h began; for other compilers than clang that is the end of the file.
#if defined(__clang__)
#pragma clang attribute pop
#endif
