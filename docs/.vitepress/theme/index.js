// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

import DefaultTheme from 'vitepress/theme'
import { miniSearch } from '../search.mjs'
import PasteYourLog from './PasteYourLog.vue'

export default {
  extends: DefaultTheme,
  enhanceApp({ app, siteData }) {
    app.component('PasteYourLog', PasteYourLog)
    const { search } = siteData.value.themeConfig
    search.options = { ...search.options, miniSearch }
  },
}
