// Formats text for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ringtrain {

// Wraps `text` into lines of at most `width` letters. Each line begins with `indent` spaces; the second and later lines
// of a paragraph begin with `hanging` more. Empty lines stay, and a line that begins with a space is not changed. The
// result ends with a newline.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t hanging = 0);

// Returns "  name   text". Texts begin after `name_width` letters. A longer name has a line of its own.
std::string entry(const std::string& name, const std::string& text, std::size_t name_width, std::size_t width);

}  // namespace ringtrain
