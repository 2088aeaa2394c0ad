// Text for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ringtrain {

std::string joined(const std::vector<std::string>& words, const std::string& between);

// Lines of at most `width` letters, each behind `indent` spaces; the second and later lines of a paragraph behind
// `hanging` more. Empty lines stay; a line that begins with a space stays as it is. Ends with a line end.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t hanging = 0);

// "  name   text", the text in a column of its own behind names of `name_width` letters. A longer name has its own line.
std::string entry(const std::string& name, const std::string& text, std::size_t name_width, std::size_t width);

}  // namespace ringtrain
