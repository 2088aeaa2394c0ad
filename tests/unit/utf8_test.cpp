#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringtrain {
namespace {

TEST(Utf8, InvalidSequencesAreFound) {
  const auto invalid = std::string_view::npos;
  EXPECT_EQ(find_invalid_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\xB6"), invalid);
  EXPECT_EQ(find_invalid_utf8("a\xC0\x80"), 1u);         // overlong
  EXPECT_EQ(find_invalid_utf8("\xE0\x80\x80"), 0u);      // overlong
  EXPECT_EQ(find_invalid_utf8("ab\xED\xA0\x80"), 2u);    // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("abc\xE2\x82"), 3u);       // cut off
  for (const std::uint32_t code : {0x41u, 0xE9u, 0x20ACu, 0x1F436u})
    EXPECT_EQ(decode_symbol(encode_symbol(code)), code);
  EXPECT_EQ(trim("\xC2\xA0 a b\t\xE3\x80\x80"), "a b");
  EXPECT_EQ(symbol_count("a\u00e9\u20ac\U0001F436"), 4u);
}

TEST(Utf8, ATextIsCutBetweenItsSymbols) {
  const std::string text = "a\u00e9\u20ac\U0001F436";  // 1, 2, 3 and 4 bytes
  const std::vector<std::size_t> lengths = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (std::size_t most = 0; most < lengths.size(); ++most)
    EXPECT_EQ(cut_to(text, most), text.substr(0, lengths[most])) << most;
  EXPECT_EQ(without_cut_symbol("a\xE2\x82"), "a");
  EXPECT_EQ(without_cut_symbol("a\xE2\x82\xAC"), "a\u20ac");
  // Text that is invalid for another reason than its end stays as it is.
  EXPECT_EQ(without_cut_symbol("a\x82"), "a\x82");
  EXPECT_EQ(without_cut_symbol("\xE2z"), "\xE2z");
}

TEST(Utf8, AFoundTextIsShownInOneLineOfWholeSymbols) {
  EXPECT_EQ(shown("two\nlines"), "'two?lines'");
  std::string long_text(59, 'x');
  EXPECT_EQ(shown(long_text + "\u00e9"), "'" + long_text + "...'");
  EXPECT_EQ(shown(long_text + "y"), "'" + long_text + "y'");
}

TEST(Utf8, CaseIsChangedSymbolBySymbol) {
  EXPECT_EQ(lower_case("AbC \u00c9\u0394-9"), "abc \u00e9\u03b4-9");
  EXPECT_EQ(upper_case("aBc \u00e9\u03b4-9"), "ABC \u00c9\u0394-9");
}

TEST(Utf8, BytesThatAreNotUtf8AreEscapedAndDifferentTextsStayDifferent) {
  EXPECT_EQ(escape_invalid_utf8("caf\xC3\xA9 \\"), "caf\xC3\xA9 \\");
  EXPECT_EQ(escape_invalid_utf8("caf\xE9"), "caf\\xe9");
  EXPECT_EQ(escape_invalid_utf8("caf\xE8"), "caf\\xe8");
  EXPECT_EQ(escape_invalid_utf8("caf\\xe9"), "caf\\\\xe9");  // a folder that is really called so
  EXPECT_EQ(escape_invalid_utf8("\\ \xE9"), "\\\\ \\xe9");
}

}  // namespace
}  // namespace ringtrain
